// The embedded PostgreSQL. It runs in a thread of its own, because it blocks its event loop for the length of a query,
// and speaks the wire protocol with the driver in the main thread: bytes in, bytes out.
import fs from 'node:fs'
import { parentPort, workerData } from 'node:worker_threads'
import { PGlite } from '@electric-sql/pglite'
import { NodeFS } from '@electric-sql/pglite/nodefs'

interface Task { bytes?: Uint8Array, dump?: string, close?: true }
interface Streams { NODEFS?: { stream_ops: { fsync?: (stream: { nfd: number }) => number } } }

const port = parentPort!
const { dir, loadDataDir } = workerData as { dir?: string, loadDataDir?: string }

// PGlite never calls fsync: its file system has no such operation. This one has.
class DurableFS extends NodeFS {
  override async init (pg: Parameters<NodeFS['init']>[0], options: Parameters<NodeFS['init']>[1]) {
    const { emscriptenOpts } = await super.init(pg, options)
    const durable = (module: unknown) => {
      const { NODEFS } = module as Streams
      if (NODEFS) NODEFS.stream_ops.fsync = ({ nfd }) => { fs.fsyncSync(nfd); return 0 }
    }
    return { emscriptenOpts: { ...emscriptenOpts, preRun: [emscriptenOpts.preRun ?? [], durable].flat() } }
  }
}

// '-F' means no fsync; the default method, fdatasync, is an empty stub in this build
const durableParams = [...PGlite.defaultStartParams.filter(param => param !== '-F'), '-c', 'wal_sync_method=fsync']

// A statement that was ended with its worker leaves its temporary files, and this kind of server never removes them
if (dir) fs.rmSync(`${dir}/base/pgsql_tmp`, { recursive: true, force: true })

const pg = await PGlite.create(dir
  ? { fs: new DurableFS(dir), startParams: durableParams }
  : { ...(loadDataDir && { loadDataDir: new Blob([fs.readFileSync(loadDataDir)]) }) })

// One task at a time: a statement must never overtake the one before it
let last: Promise<unknown> = Promise.resolve()
port.on('message', (task: Task) => { last = last.then(() => run(task)) })
port.postMessage({ ready: true })

async function run (task: Task) {
  if (task.bytes) {
    await pg.execProtocolRawStream(task.bytes, { onRawData: bytes => port.postMessage({ bytes: bytes.slice() }) })
  } else if (task.dump) {
    fs.writeFileSync(task.dump, Buffer.from(await (await pg.dumpDataDir('none')).arrayBuffer()), { mode: 0o600 })
    port.postMessage({ dumped: true })
  } else {
    await pg.close()
    port.postMessage({ closed: true })
    port.close()
  }
}
