"""`CorralSaver`: a langgraph checkpointer that stores checkpoints in Corral.

    from corral.integrations.langgraph import CorralSaver

    with CorralSaver() as saver:  # the user's own store; or a URL, or an open store
        graph = builder.compile(checkpointer=saver)
        graph.invoke(inputs, {"configurable": {"thread_id": "trip"}})

When `put` returns, the checkpoint is durable. A saver may be shared between threads and used from
any event loop.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, Self, cast

from corral.api import Corral
from corral.domain.checkpoints.model import Checkpoint as StoredCheckpoint
from corral.domain.checkpoints.model import NewCheckpointWrite
from corral.integrations import resolve_store, run_shielded
from corral.kernel.errors import Invalid

try:
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import (
        WRITES_IDX_MAP,
        BaseCheckpointSaver,
        ChannelVersions,
        Checkpoint,
        CheckpointMetadata,
        CheckpointTuple,
        get_checkpoint_id,
        get_serializable_checkpoint_metadata,
    )
    from langgraph.checkpoint.serde.base import SerializerProtocol
except ImportError as error:
    raise ImportError(
        "CorralSaver needs langgraph. Run `pip install 'corral[langgraph]'`."
    ) from error

PAGE = 100


class CorralSaver(BaseCheckpointSaver[int]):
    """Stores langgraph checkpoints and pending writes."""

    def __init__(
        self,
        store: Corral | str | Path | None = None,
        *,
        serde: SerializerProtocol | None = None,
        token: str | None = None,
    ) -> None:
        """`store`: an open store, a URL (of a daemon, with `token`), or None for the user's own."""
        super().__init__(serde=serde)
        self._store, self._is_owner = resolve_store(store, token)

    def close(self) -> None:
        """Close the store, unless it was passed in open."""
        if self._is_owner:
            self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- read -----------------------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that the config names, or the latest of its namespace."""
        thread, ns = _thread_of(config)
        checkpoint = self._store.checkpoints.get(thread, ns=ns, id=get_checkpoint_id(config))
        return self._to_tuple(checkpoint) if checkpoint else None

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yield checkpoints whose metadata matches `filter`, newest first."""
        configurable = config["configurable"] if config else {}
        criteria = {
            "ns": configurable.get("checkpoint_ns") if config else None,
            "before": get_checkpoint_id(before) if before else None,
        }
        only = get_checkpoint_id(config) if config else None
        left, after = limit, None
        while left is None or left > 0:
            page = self._store.checkpoints.history(
                str(configurable["thread_id"]) if config else None,
                after=after,
                limit=PAGE if left is None or filter or only else min(left, PAGE),
                **criteria,
            )
            for checkpoint in page.items:
                if _matches(checkpoint, filter) and only in (None, checkpoint.id) and left != 0:
                    yield self._to_tuple(checkpoint)
                    left = None if left is None else left - 1
            after = page.next
            if after is None:
                return

    # -- write ----------------------------------------------------------------------------------

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint; its parent is the one that the config names."""
        thread, ns = _thread_of(config)
        format, body = self.serde.dumps_typed(checkpoint)
        stored_metadata = get_serializable_checkpoint_metadata(config, metadata)
        caller = stored_metadata.get("run_id")
        self._store.checkpoints.put(
            thread,
            checkpoint["id"],
            format,
            body,
            ns=ns,
            parent=get_checkpoint_id(config),
            metadata=stored_metadata,
            caller=str(caller) if caller else None,
        )
        return _config(thread, ns, checkpoint["id"])

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store the writes of a task before its step is complete. Idempotent."""
        thread, ns = _thread_of(config)
        id = get_checkpoint_id(config)
        if id is None:
            raise Invalid(
                "The config has no checkpoint_id; writes belong to a checkpoint.",
                reason="checkpoint_missing",
            )
        self._store.checkpoints.put_writes(
            thread,
            id,
            task_id,
            [
                NewCheckpointWrite(
                    WRITES_IDX_MAP.get(channel, n), channel, *self.serde.dumps_typed(value)
                )
                for n, (channel, value) in enumerate(writes)
            ],
            ns=ns,
            path=task_path,
            # Errors and interrupts may be replaced; writes to a channel are final.
            replace=all(channel in WRITES_IDX_MAP for channel, _ in writes),
        )

    # -- delete and copy ------------------------------------------------------------------------

    def delete_thread(self, thread_id: str) -> None:
        """Delete all checkpoints and writes of a thread."""
        self._store.checkpoints.delete(str(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints that these langgraph runs created, and their writes."""
        if run_ids:
            self._store.checkpoints.delete_of_callers([str(id) for id in run_ids])

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints and writes of a thread to another thread."""
        self._store.checkpoints.copy(str(source_thread_id), str(target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete all but the latest checkpoint of each namespace and the ancestors that its state
        is built from; with the strategy `delete`, delete all."""
        if strategy not in ("keep_latest", "delete"):
            raise Invalid(
                f"Unknown strategy {strategy!r}: expected keep_latest or delete.",
                reason="unknown_strategy",
            )
        for thread in map(str, thread_ids):
            if strategy == "delete":
                self.delete_thread(thread)
                continue
            for head in self._store.checkpoints.heads(thread):
                needed = self._needed_ids(_config(thread, head.ns, head.id))
                self._store.checkpoints.trim(thread, head.ns, needed)

    def _needed_ids(self, config: RunnableConfig) -> Sequence[str]:
        """Return a checkpoint and its ancestors up to a full snapshot of channels that are stored
        as deltas."""
        checkpoint = self.get_tuple(config)
        ids = []
        missing: set[str] = set()
        while checkpoint is not None:
            ids.append(checkpoint.config["configurable"]["checkpoint_id"])
            if len(ids) == 1:
                missing = set(checkpoint.metadata.get("counters_since_delta_snapshot") or {})
            missing -= set(checkpoint.checkpoint["channel_values"])
            if not missing or checkpoint.parent_config is None:
                break
            checkpoint = self.get_tuple(checkpoint.parent_config)
        return ids

    # -- async versions -------------------------------------------------------------------------

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await asyncio.to_thread(self.get_tuple, config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        checkpoints = self.list(config, filter=filter, before=before, limit=limit)
        while (checkpoint := await asyncio.to_thread(next, checkpoints, None)) is not None:
            yield checkpoint

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return await run_shielded(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        await run_shielded(self.put_writes, config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        await run_shielded(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await run_shielded(self.delete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await run_shielded(self.copy_thread, source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        await run_shielded(self.prune, thread_ids, strategy=strategy)

    def _to_tuple(self, stored: StoredCheckpoint) -> CheckpointTuple:
        load = self.serde.loads_typed
        return CheckpointTuple(
            _config(stored.thread, stored.ns, stored.id),
            load((stored.format, stored.body)),
            cast(CheckpointMetadata, stored.metadata),
            _config(stored.thread, stored.ns, stored.parent) if stored.parent else None,
            [
                (write.task, write.channel, load((write.format, write.value)))
                for write in stored.writes
            ],
        )


def _thread_of(config: RunnableConfig) -> tuple[str, str]:
    """Return the thread and namespace that a config names."""
    configurable = config["configurable"]
    if configurable.get("thread_id") in (None, ""):
        raise Invalid(
            'The config has no thread_id. Pass {"configurable": {"thread_id": "…"}}.',
            reason="thread_missing",
        )
    return str(configurable["thread_id"]), str(configurable.get("checkpoint_ns") or "")


def _config(thread: str, ns: str, id: str) -> RunnableConfig:
    configurable = {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": id}
    return {"configurable": configurable}


def _matches(checkpoint: StoredCheckpoint, filter: dict[str, Any] | None) -> bool:
    return all(checkpoint.metadata.get(key) == value for key, value in (filter or {}).items())
