// Runs the embedded PostgreSQL, which blocks its thread during a query. Exchanges wire protocol bytes with the driver.
import fs from 'node:fs'
import { parentPort, workerData } from 'node:worker_threads'
import { PGlite } from '@electric-sql/pglite'
import { NodeFS } from '@electric-sql/pglite/nodefs'
import { copyCluster } from './copy-cluster.ts'
import type { WorkerInput } from './embedded.ts'
import { MEANING, ONLY_SESSION } from '../postgres/session.ts'

interface Task { bytes?: Uint8Array, copy?: string, close?: true }
type Operation = (...args: never[]) => unknown
type Write = (stream: unknown, bytes: unknown, offset: number, length: number, position?: number) => number
interface Streams { NODEFS?: { stream_ops: Record<string, Operation> } }

const port = parentPort!
const { dir, durable, program, progress, cancelled } = workerData as WorkerInput

// PGlite's file system has no fsync operation. This class adds fsync and counts operations for the watchdog.
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
        if (operation !== undefined) operations[name] = (...args) => { countOperation(); return operation(...args) }
      }
      const write = operations.write as Write | undefined
      if (write !== undefined) operations.write = reportingFullDisk(write) as Operation
    }
    return { emscriptenOpts: { ...emscriptenOpts, preRun: [emscriptenOpts.preRun ?? [], change].flat() } }
  }
}

// Emscripten's errno for ENOSPC and EDQUOT.
const DISK_FULL = [51, 19]

// PostgreSQL usually stops responding after a failed write, so the worker reports the full disk itself.
function reportingFullDisk (write: Write): Write {
  return (stream, bytes, offset, length, position) => {
    try {
      const written = write(stream, bytes, offset, length, position)
      if (written < length) port.postMessage({ full: true })
      return written
    } catch (error) {
      if (DISK_FULL.includes((error as { errno: number }).errno)) port.postMessage({ full: true })
      throw error
    }
  }
}

// The exit status with which PostgreSQL reports an error of a statement (PGlite's POSTGRES_MAIN_LONGJMP).
const STATEMENT_FAILED = 100

// After a FATAL or PANIC, PGlite would run the main loop of the ended session again without end. `process.exit` ends
// this worker thread (not the process), and the main thread then opens the database again.
function endWithSession (module: PGlite['Module']) {
  const loopOnce = module._PostgresMainLoopOnce
  module._PostgresMainLoopOnce = () => {
    try {
      loopOnce()
    } catch (error) {
      if ((error as { status?: number }).status !== STATEMENT_FAILED) process.exit(1)
      throw error
    }
  }
}

function countOperation () {
  Atomics.add(progress, 0, 1)
}

const startParams = [
  // '-F' disables fsync. The default sync method, fdatasync, does nothing in this build.
  ...PGlite.defaultStartParams.filter(param => param !== '-F' || !durable), '-c', 'wal_sync_method=fsync',
  // One session needs no more memory, and WebAssembly never releases memory.
  '-c', 'shared_buffers=16MB', '-c', 'max_connections=5'
]

// If the worker ends during a statement, temporary files remain, which single-user PostgreSQL never removes.
fs.rmSync(`${dir}/base/pgsql_tmp`, { recursive: true, force: true })
const pg = await PGlite.create({ fs: new WatchedFS(dir), startParams, pgliteWasmModule: program })
endWithSession(pg.Module)
// PGlite ignores connection parameters.
for (const [name, value] of Object.entries({ ...MEANING, ...ONLY_SESSION })) await pg.exec(`SET ${name} = '${value}'`)

// Runs one task at a time, so that statements keep their order.
let last: Promise<unknown> = Promise.resolve()
port.on('message', (task: Task) => { last = last.then(() => run(task)) })
port.postMessage({ ready: true })

async function run (task: Task) {
  if (task.bytes) {
    // Sends a part of the response when the next part arrives, so that the last part and `done` are one message.
    let last: Uint8Array | undefined
    await pg.execProtocolRawStream(task.bytes, {
      // NodeFS writes directly to disk.
      syncToFs: false,
      onRawData (bytes) {
        if (last !== undefined) port.postMessage({ bytes: last })
        last = bytes.slice()
      }
    })
    port.postMessage({ bytes: last, done: true })
  } else if (task.copy !== undefined) {
    port.postMessage({ copied: tryCopy(task.copy) })
  } else {
    await pg.close()
    port.postMessage({ closed: true })
    port.close()
  }
}

// Returns an error message, or an empty string.
function tryCopy (to: string): string {
  try {
    copyCluster(dir, to, { onProgress: countOperation, isCancelled: () => Atomics.load(cancelled, 0) === 1 })
    return ''
  } catch (error) {
    return (error as Error).message
  }
}
