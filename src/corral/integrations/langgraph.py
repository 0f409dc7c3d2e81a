"""`CorralSaver`: a checkpointer of langgraph whose checkpoints are in a Corral store.

    from corral.integrations.langgraph import CorralSaver

    with CorralSaver() as saver:  # the user's own store; or a URL, or an open store
        graph = builder.compile(checkpointer=saver)
        graph.invoke(inputs, {"configurable": {"thread_id": "trip"}})

A checkpoint that `put` returned for survives the death of any process. It may be shared between
threads, and used from any event loop.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, Self, cast

from corral.api import Corral
from corral.domain.checkpoints.model import Checkpoint as Kept
from corral.domain.checkpoints.model import NewWrite
from corral.integrations import store_of, to_its_end
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
        "CorralSaver needs langgraph; run `pip install 'corral[langgraph]'`."
    ) from error

PAGE = 100


class CorralSaver(BaseCheckpointSaver[int]):
    """Keeps langgraph's checkpoints and pending writes in a store, on either engine."""

    def __init__(
        self,
        store: Corral | str | Path | None = None,
        *,
        serde: SerializerProtocol | None = None,
        token: str | None = None,
    ) -> None:
        """Use an open store, the one at a URL (a daemon's, with `token`), or the user's own."""
        super().__init__(serde=serde)
        self._store, self._ours = store_of(store, token)

    def close(self) -> None:
        """Close the store, unless it was given open."""
        if self._ours:
            self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- reading --------------------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that the config names, else the latest of its thread and namespace."""
        thread, ns = _place(config)
        found = self._store.checkpoints.get(thread, ns=ns, id=get_checkpoint_id(config))
        return self._tuple_of(found) if found else None

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints, newest first, whose metadata has all that is in `filter`."""
        given = config["configurable"] if config else {}
        wanted = {
            "ns": given.get("checkpoint_ns") if config else None,
            "before": get_checkpoint_id(before) if before else None,
        }
        only = get_checkpoint_id(config) if config else None
        left, after = limit, None
        while left is None or left > 0:
            page = self._store.checkpoints.history(
                str(given["thread_id"]) if config else None,
                after=after,
                limit=PAGE if left is None or filter or only else min(left, PAGE),
                **wanted,
            )
            for found in page.items:
                if _has(found, filter) and only in (None, found.id) and left != 0:
                    yield self._tuple_of(found)
                    left = None if left is None else left - 1
            after = page.next
            if after is None:
                return

    # -- writing --------------------------------------------------------------------------------

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Keep a checkpoint; its parent is the one that the config names."""
        thread, ns = _place(config)
        format, body = self.serde.dumps_typed(checkpoint)
        told = get_serializable_checkpoint_metadata(config, metadata)
        caller = told.get("run_id")
        self._store.checkpoints.put(
            thread,
            checkpoint["id"],
            format,
            body,
            ns=ns,
            parent=get_checkpoint_id(config),
            metadata=told,
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
        """Keep what a task wrote before its step was over; told twice, it is kept once."""
        thread, ns = _place(config)
        id = get_checkpoint_id(config)
        if id is None:
            raise Invalid(
                "Writes belong to a checkpoint; name it in the config.", reason="checkpoint_missing"
            )
        self._store.checkpoints.put_writes(
            thread,
            id,
            task_id,
            [
                NewWrite(WRITES_IDX_MAP.get(channel, n), channel, *self.serde.dumps_typed(value))
                for n, (channel, value) in enumerate(writes)
            ],
            ns=ns,
            path=task_path,
            # An error or an interrupt may change; what was written to a channel does not.
            replace=all(channel in WRITES_IDX_MAP for channel, _ in writes),
        )

    # -- forgetting and copying -----------------------------------------------------------------

    def delete_thread(self, thread_id: str) -> None:
        """Forget all checkpoints and writes of a thread."""
        self._store.checkpoints.delete(str(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Forget the checkpoints that these runs of langgraph's made, and their writes."""
        if run_ids:
            self._store.checkpoints.delete_of_callers([str(id) for id in run_ids])

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Give another thread all checkpoints and writes of a thread."""
        self._store.checkpoints.copy(str(source_thread_id), str(target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keep the latest checkpoint of each namespace, and those that its state is built from;
        or, with the strategy `delete`, none."""
        if strategy not in ("keep_latest", "delete"):
            raise Invalid(
                f"{strategy!r} is no way to prune; say keep_latest or delete.",
                reason="unknown_strategy",
            )
        for thread in map(str, thread_ids):
            if strategy == "delete":
                self.delete_thread(thread)
                continue
            for head in self._store.checkpoints.heads(thread):
                kept = self._needed(_config(thread, head.ns, head.id))
                self._store.checkpoints.trim(thread, head.ns, kept)

    def _needed(self, config: RunnableConfig) -> Sequence[str]:
        """A checkpoint and its ancestors, as far as channels are kept as changes alone."""
        found = self.get_tuple(config)
        kept = []
        missing: set[str] = set()
        while found is not None:
            kept.append(found.config["configurable"]["checkpoint_id"])
            if len(kept) == 1:
                missing = set(found.metadata.get("counters_since_delta_snapshot") or {})
            missing -= set(found.checkpoint["channel_values"])
            if not missing or found.parent_config is None:
                break
            found = self.get_tuple(found.parent_config)
        return kept

    # -- the same for event loops ---------------------------------------------------------------

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
        found = self.list(config, filter=filter, before=before, limit=limit)
        while (each := await asyncio.to_thread(next, found, None)) is not None:
            yield each

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return await to_its_end(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        await to_its_end(self.put_writes, config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        await to_its_end(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await to_its_end(self.delete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await to_its_end(self.copy_thread, source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        await to_its_end(self.prune, thread_ids, strategy=strategy)

    def _tuple_of(self, found: Kept) -> CheckpointTuple:
        load = self.serde.loads_typed
        return CheckpointTuple(
            _config(found.thread, found.ns, found.id),
            load((found.format, found.body)),
            cast(CheckpointMetadata, found.metadata),
            _config(found.thread, found.ns, found.parent) if found.parent else None,
            [(each.task, each.channel, load((each.format, each.value))) for each in found.writes],
        )


def _place(config: RunnableConfig) -> tuple[str, str]:
    """The thread that a config names, and the part of it."""
    named = config["configurable"]
    if named.get("thread_id") in (None, ""):
        raise Invalid(
            'The config names no thread; give {"configurable": {"thread_id": "…"}}.',
            reason="thread_missing",
        )
    return str(named["thread_id"]), str(named.get("checkpoint_ns") or "")


def _config(thread: str, ns: str, id: str) -> RunnableConfig:
    named = {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": id}
    return {"configurable": named}


def _has(found: Kept, wanted: dict[str, Any] | None) -> bool:
    return all(found.metadata.get(key) == value for key, value in (wanted or {}).items())
