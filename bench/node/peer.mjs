// Measure the jobs of one implementation inside node: `node peer.mjs MODULE`.
//
// The first line of standard input is the set-up: {file, synchronous, pages, given}. Each further line
// {counts: {job: n}} is answered with {job: calls per second}. Exits at the end of the input.
import { createInterface } from 'node:readline';
import Database from 'better-sqlite3';

const { jobs } = await import(`./${process.argv[2]}.mjs`);
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const readMessage = async () => {
  const { value } = await lines.next();
  return value && JSON.parse(value);
};

const { file, synchronous, pages, given } = await readMessage();
const sqlite = new Database(file);
for (const pragma of [`synchronous = ${synchronous}`, 'temp_store = MEMORY', 'foreign_keys = ON',
  'busy_timeout = 10000', `wal_autocheckpoint = ${pages}`]) {
  sqlite.pragma(pragma);
}
const implementation = jobs(sqlite, { ...given, actor: 'user:bench', mailbox: 'queue:bench', lease: 30_000 });
const { sqlite_version } = sqlite.prepare('SELECT sqlite_version() AS sqlite_version').get();
console.log(JSON.stringify({ node: process.versions.node, sqlite: sqlite_version }));

for (let request = await readMessage(); request; request = await readMessage()) {
  const rates = {};
  for (const [job, count] of Object.entries(request.counts)) {
    const start = performance.now();
    // A synchronous job returns no promise, so it is not awaited.
    for (let n = 0; n < count; n++) {
      const promise = implementation[job](n);
      if (promise) await promise;
    }
    rates[job] = (count * 1000) / (performance.now() - start);
  }
  console.log(JSON.stringify(rates));
}
sqlite.close();
