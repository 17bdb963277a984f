import fs from 'node:fs'
import { readFile } from 'node:fs/promises'
import path from 'node:path'
import { Duplex } from 'node:stream'
import { fileURLToPath } from 'node:url'
import { setFlagsFromString } from 'node:v8'
import { Worker } from 'node:worker_threads'
import type { PGliteOptions } from '@electric-sql/pglite'
import { serveRequests, type OnRequest } from './requests.ts'
import { DatabaseUnavailable } from '../postgres/database-errors.ts'
import { lockDirectory } from './lock.ts'
import { createWatchdog, type Watchdog } from './watchdog.ts'

// The watchdog ends a statement after this time without a message: the embedded PostgreSQL has no statement timeout.
const SILENCE_TIMEOUT_MS = 8_000
const PROGRESS_TIMEOUT_MS = 60_000
const CHECK_INTERVAL_MS = 500
const CLOSE_TIMEOUT_MS = 5_000
// V8's budget: how long a WebAssembly function runs before V8 optimizes the function. With the default, V8 recompiles
// for seconds during the start and keeps 40 to 80 MB of memory. Hot loops of large functions still exceed this budget.
const TIERING_BUDGET = 2_000_000_000

/** The archive of an empty database, which the first start unpacks. The build creates the archive. */
export const TEMPLATE = fileURLToPath(new URL('../../../cluster.tar.gz', import.meta.url))

export interface EmbeddedOptions {
  dir: string
  /** False skips fsync, as in most tests. A power failure can then lose data. */
  durable?: boolean | undefined
  /** Called when the database fails and only a restart helps. */
  onFatal?: ((error: Error) => void) | undefined
  /** Called with progress messages while opening or migrating takes long. */
  onWait?: ((line: string) => void) | undefined
  /** Handles requests of other processes of this user (`sendRequest`). */
  onRequest?: OnRequest | undefined
}

export interface WorkerInput {
  dir: string
  template: string
  durable: boolean
  program: Program
  progress: Int32Array<SharedArrayBuffer>
  /** 1 when the current copy is no longer needed. */
  cancelled: Int32Array<SharedArrayBuffer>
}

type Program = NonNullable<PGliteOptions['pgliteWasmModule']>
declare const WebAssembly: { compile (bytes: Uint8Array): Promise<Program> }

interface Answer { ready?: true, bytes?: Uint8Array, done?: true, copied?: string, closed?: true, full?: true }

/** The disk became full during a migration, maintenance or a copy. */
export class DiskFull extends Error {}

/** Opens the embedded database in a directory, which stays locked until `close`. Never runs two workers at once. */
export async function openEmbedded ({
  dir, durable = true, onFatal = () => {}, onWait = () => {},
  onRequest = async () => undefined
}: EmbeddedOptions) {
  const unlock = await claim(dir)
  const threadOf = (name: string) => new URL(import.meta.url.replace(/embedded(\.\w+)$/, `${name}$1`))
  // Incremented by every file operation.
  const progress = new Int32Array(new SharedArrayBuffer(4))
  const cancelled = new Int32Array(new SharedArrayBuffer(4))
  let stalled = (_reason: string) => {}
  const watchdog = createWatchdog({
    silence: SILENCE_TIMEOUT_MS,
    patience: PROGRESS_TIMEOUT_MS,
    progress: () => Atomics.load(progress, 0),
    onWait,
    onStall: (reason) => stalled(reason)
  })
  let worker: Worker | undefined
  let ended: Promise<unknown> = Promise.resolve()
  let closed = false
  const endRequests = await serveRequests(dir, copy, onRequest).catch((error: unknown) => {
    unlock()
    throw error
  })
  const noRoom = () => `No space is left in ${path.resolve(dir)}`

  /** Starts the worker; returns a stream that postgres.js uses as its socket. */
  async function socket () {
    // Two workers would corrupt the files: wait until the previous worker has ended.
    await ended
    const program = await compiled()
    if (closed) throw new DatabaseUnavailable('The embedded database is closed')
    const workerData: WorkerInput = { dir: clusterOf(dir), template: TEMPLATE, durable, program, progress, cancelled }
    if (!hasCluster(dir)) await started('cluster-worker', 'is made', workerData, 'exit')
    const one = await started('embedded-worker', 'starts', workerData, 'ready')
    return streamOf(one, watchdog, fail => { stalled = fail })
  }

  /** Starts a thread and waits for the message `until`. Fails if the thread makes no progress. */
  async function started (name: string, what: string, workerData: WorkerInput, until: 'ready' | 'exit') {
    const thread = worker = new Worker(threadOf(name), { workerData, execArgv: [] })
    ended = new Promise(resolve => thread.once('exit', resolve))
    // setImmediate runs after pending messages are read, so a blocked main thread does not look like a silent worker.
    const looking = setInterval(() => { setImmediate(() => watchdog.look()) }, CHECK_INTERVAL_MS).unref()
    thread.once('exit', () => clearInterval(looking))
    const done = watchdog.patiently(what)
    watchdog.begin()
    try {
      await waitForMessage(thread, until, fail => { stalled = fail })
      return thread
    } catch (error) {
      await thread.terminate()
      const { code, message } = error as NodeJS.ErrnoException
      const reason = code === 'ENOSPC' || code === 'EDQUOT' ? noRoom() : message ?? 'its files cannot be read'
      const failure = new DatabaseUnavailable(`The embedded database does not open: ${reason}`)
      if (!closed) onFatal(failure)
      throw failure
    } finally {
      watchdog.end()
      done()
    }
  }

  /** Runs `work`, whose statements may take long while they make progress. Throws DiskFull if the disk becomes full. */
  async function patiently<T> (what: string, work: () => Promise<T>) {
    const done = watchdog.patiently(what)
    const one = worker
    let isFull = false
    // Handles the message `full`: without it, the failure would be noticed only after PROGRESS_TIMEOUT_MS.
    const look = ({ full }: Answer) => {
      if (full === undefined) return
      isFull = true
      stalled('the disk is full')
    }
    one?.on('message', look)
    try {
      return await work()
    } catch (error) {
      throw isFull ? new DiskFull(noRoom()) : error
    } finally {
      one?.off('message', look)
      done()
    }
  }

  // Copies run one at a time (`serveRequests`).
  async function copy (to: string, signal: AbortSignal) {
    const one = worker
    if (closed || one === undefined || one.threadId === -1) throw new Error('it is not open')
    const cancel = () => { Atomics.store(cancelled, 0, 1) }
    Atomics.store(cancelled, 0, signal.aborted ? 1 : 0)
    signal.addEventListener('abort', cancel)
    // The client also disconnects after its copy. Without this removal, the listener would then cancel the next copy.
    const done = () => signal.removeEventListener('abort', cancel)
    await patiently('is copied', async () => {
      const response = waitForMessage(one, 'copied')
      one.postMessage({ copy: to })
      const { copied } = await response
      if (copied !== '') throw new Error(copied)
    }).finally(done)
  }

  async function close () {
    closed = true
    endRequests()
    if (worker) await shut(worker)
    await ended
    unlock()
  }

  return { socket, patiently, close }
}

const clusterOf = (dir: string) => path.resolve(dir, 'cluster')

export const hasCluster = (dir: string): boolean => fs.existsSync(path.join(clusterOf(dir), 'PG_VERSION'))

let program: Promise<Program> | undefined

function compiled () {
  setFlagsFromString(`--wasm-tiering-budget=${TIERING_BUDGET}`)
  program ??= readFile(new URL('pglite.wasm', import.meta.resolve('@electric-sql/pglite'))).then(bytes =>
    WebAssembly.compile(bytes))
  return program
}

// A socket for postgres.js: the wire protocol over the worker's message port.
function streamOf (worker: Worker, watchdog: Watchdog, onStall: (fail: () => void) => void) {
  let working = 0
  const stream = new Duplex({
    read () {},
    write (chunk: Buffer, _encoding, done) {
      working++
      watchdog.begin()
      worker.postMessage({ bytes: new Uint8Array(chunk) })
      done()
    },
    final (done) { shut(worker).then(() => done(), done) },
    destroy (error, done) { worker.terminate().then(() => done(error), () => done(error)) }
  })
  worker.on('message', ({ bytes, done }: Answer) => {
    watchdog.heard()
    if (done) {
      working--
      watchdog.end()
    }
    if (bytes && !stream.destroyed) stream.push(Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength))
  })
  worker.on('error', () => stream.destroy())
  worker.once('exit', () => {
    for (; working > 0; working--) watchdog.end()
    stream.destroy()
  })
  onStall(() => stream.destroy())
  // postgres.js ends a socket only in this state.
  return Object.assign(stream, { readyState: 'open' })
}

// Shuts PostgreSQL down, so that the next start needs no recovery.
async function shut (worker: Worker) {
  if (worker.threadId !== -1) {
    worker.postMessage({ close: true })
    let timer: NodeJS.Timeout | undefined
    await waitForMessage(worker, 'closed', fail => {
      timer = setTimeout(() => fail('it does not close'), CLOSE_TIMEOUT_MS)
    }).catch(() => {})
    clearTimeout(timer)
  }
  await worker.terminate()
}

// Resolves with the first message that has this property, or at the end of the thread (`exit`).
function waitForMessage (
  worker: Worker, property: 'ready' | 'copied' | 'closed' | 'exit', giveUp: (fail: (reason: string) => void) => void = () => {}
) {
  return new Promise<Answer>((resolve, reject) => {
    const end = () => worker.off('message', message).off('error', fail).off('exit', exit)
    const done = (answer: Answer) => {
      end()
      resolve(answer)
    }
    // PGlite also throws values that are not instances of Error.
    const fail = (error: unknown) => {
      end()
      reject(error)
    }
    const message = (answer: Answer) => { if (property !== 'exit' && answer[property] !== undefined) done(answer) }
    const exit = (code: number) =>
      property === 'exit' && code === 0 ? done({}) : fail(new Error('its worker thread has ended'))
    giveUp(reason => fail(new Error(reason)))
    worker.on('message', message).on('error', fail).on('exit', exit)
  })
}

async function claim (dir: string) {
  // PGlite creates world-readable files, so the directory must deny access.
  makeDirectory(dir, 0o700)
  const { mode, uid } = fs.statSync(dir)
  if (process.getuid && uid !== process.getuid()) throw new Error(`${path.resolve(dir)} belongs to another user`)
  if (process.platform !== 'win32' && (mode & 0o077) !== 0) {
    throw new Error(`${path.resolve(dir)} is open to other users: chmod 700 it`)
  }
  return await lockDirectory(dir)
}

/**
 * Creates a directory with its missing parents. Returns the first created directory; undefined if all existed. Does not
 * use `mkdirSync` with `recursive`, which retries without end if the file system responds with ENOENT, as /proc does.
 */
export function makeDirectory (directory: string, mode: number): string | undefined {
  const absolute = path.resolve(directory)
  if (isDirectory(absolute)) return undefined
  const first = makeDirectory(path.dirname(absolute), mode)
  try {
    fs.mkdirSync(absolute, { mode })
  } catch (error) {
    // Another process may have created the directory meanwhile.
    if (!isDirectory(absolute)) throw error
    return first
  }
  return first ?? absolute
}

const isDirectory = (directory: string): boolean =>
  fs.statSync(directory, { throwIfNoEntry: false })?.isDirectory() === true
