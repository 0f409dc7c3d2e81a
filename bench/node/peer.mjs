// One way of working with SQLite from node, timed inside node.
//
// `node peer.mjs WAY`, WAY being the name of a module here. The first line of standard input is the
// set-up: {file, synchronous, given: {session, project}}; each further one {counts: {job: n}}
// is answered with {job: how many a second}. It ends when its input does.
import { createInterface } from 'node:readline';
import Database from 'better-sqlite3';

const { jobs } = await import(`./${process.argv[2]}.mjs`);
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const heard = async () => {
  const { value } = await lines.next();
  return value && JSON.parse(value);
};

const { file, synchronous, pages, given } = await heard();
const sqlite = new Database(file);
for (const pragma of [`synchronous = ${synchronous}`, 'temp_store = MEMORY', 'foreign_keys = ON',
  'busy_timeout = 10000', `wal_autocheckpoint = ${pages}`]) {
  sqlite.pragma(pragma);
}
const able = jobs(sqlite, { ...given, actor: 'user:bench', mailbox: 'queue:bench', lease: 30_000 });
const { sqlite_version } = sqlite.prepare('SELECT sqlite_version() AS sqlite_version').get();
console.log(JSON.stringify({ node: process.versions.node, sqlite: sqlite_version }));

for (let asked = await heard(); asked; asked = await heard()) {
  const rates = {};
  for (const [job, count] of Object.entries(asked.counts)) {
    const began = performance.now();
    // What is not asynchronous is not made to wait for its turn.
    for (let n = 0; n < count; n++) {
      const going = able[job](n);
      if (going) await going;
    }
    rates[job] = (count * 1000) / (performance.now() - began);
  }
  console.log(JSON.stringify(rates));
}
sqlite.close();
