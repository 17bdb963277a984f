// The embedded PostgreSQL. It runs in a thread of its own, because it blocks its event loop for the length of a query,
// and speaks the wire protocol with the driver in the main thread: bytes in, bytes out.
import fs from 'node:fs'
import { parentPort, workerData } from 'node:worker_threads'
import { PGlite } from '@electric-sql/pglite'
import { NodeFS } from '@electric-sql/pglite/nodefs'
import { copyCluster } from './copy-cluster.ts'
import type { WorkerInput } from './embedded.ts'
import { MEANING } from '../postgres/session.ts'

interface Task { bytes?: Uint8Array, copy?: string, close?: true }
type Operation = (...args: never[]) => unknown
type Write = (stream: unknown, bytes: unknown, offset: number, length: number, position?: number) => number
interface Streams { NODEFS?: { stream_ops: Record<string, Operation> } }

const port = parentPort!
const { dir, durable, program, progress, cancelled } = workerData as WorkerInput

// PGlite never calls fsync: its file system has no such operation. This one has, and it counts what it does.
class WatchedFS extends NodeFS {
  override async init (pg: Parameters<NodeFS['init']>[0], options: Parameters<NodeFS['init']>[1]) {
    const { emscriptenOpts } = await super.init(pg, options)
    const change = (module: unknown) => {
      const { NODEFS } = module as Streams
      if (NODEFS === undefined) return
      const operations = NODEFS.stream_ops
      if (durable) operations.fsync = ({ nfd }: { nfd: number }) => { fs.fsyncSync(nfd); return 0 }
      for (const name of ['open', 'read', 'write', 'fsync']) {
        const operation = operations[name]
        if (operation !== undefined) operations[name] = (...args) => { moved(); return operation(...args) }
      }
      const write = operations.write as Write | undefined
      if (write !== undefined) operations.write = tellingOfNoRoom(write) as Operation
    }
    return { emscriptenOpts: { ...emscriptenOpts, preRun: [emscriptenOpts.preRun ?? [], change].flat() } }
  }
}

// Emscripten's numbers for ENOSPC and EDQUOT.
const NO_ROOM = [51, 19]

// What was refused space answers nothing any more as a rule, so it is said from here.
function tellingOfNoRoom (write: Write): Write {
  return (stream, bytes, offset, length, position) => {
    try {
      const written = write(stream, bytes, offset, length, position)
      if (written < length) port.postMessage({ full: true })
      return written
    } catch (error) {
      if (NO_ROOM.includes((error as { errno: number }).errno)) port.postMessage({ full: true })
      throw error
    }
  }
}

function moved () {
  Atomics.add(progress, 0, 1)
}

const startParams = [
  // '-F' means no fsync; the default method, fdatasync, is an empty stub in this build
  ...PGlite.defaultStartParams.filter(param => param !== '-F' || !durable), '-c', 'wal_sync_method=fsync',
  // One session needs no more, and what it has is never given back
  '-c', 'shared_buffers=16MB', '-c', 'max_connections=5'
]

// A statement that was ended with its worker leaves its temporary files, and this kind of server never removes them
fs.rmSync(`${dir}/base/pgsql_tmp`, { recursive: true, force: true })
const pg = await PGlite.create({ fs: new WatchedFS(dir), startParams, pgliteWasmModule: program })
// It reads no parameters of a connection.
for (const [name, value] of Object.entries(MEANING)) await pg.exec(`SET ${name} = '${value}'`)

// One task at a time: a statement must never overtake the one before it
let last: Promise<unknown> = Promise.resolve()
port.on('message', (task: Task) => { last = last.then(() => run(task)) })
port.postMessage({ ready: true })

async function run (task: Task) {
  if (task.bytes) {
    // The last part of an answer also says that the answer is complete: one message fewer.
    let last: Uint8Array | undefined
    await pg.execProtocolRawStream(task.bytes, {
      // NodeFS writes through; there is nothing to synchronize.
      syncToFs: false,
      onRawData (bytes) {
        if (last !== undefined) port.postMessage({ bytes: last })
        last = bytes.slice()
      }
    })
    port.postMessage({ bytes: last, done: true })
  } else if (task.copy !== undefined) {
    port.postMessage({ copied: copied(task.copy) })
  } else {
    await pg.close()
    port.postMessage({ closed: true })
    port.close()
  }
}

// Answers what is wrong.
function copied (to: string): string {
  try {
    copyCluster(dir, to, { onProgress: moved, isCancelled: () => Atomics.load(cancelled, 0) === 1 })
    return ''
  } catch (error) {
    return (error as Error).message
  }
}
