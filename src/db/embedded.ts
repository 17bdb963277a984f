import fs from 'node:fs'
import path from 'node:path'
import { Duplex } from 'node:stream'
import { Worker } from 'node:worker_threads'
import { lockDirectory } from './lock.ts'

// The first start makes a cluster: four seconds, and many more on a busy machine.
const OPEN_DEADLINE = 60_000
const CLOSE_DEADLINE = 5_000

/** The embedded database: one worker for each connection, and never two at once. */
export interface Embedded {
  /** Starts the worker and answers a stream that postgres.js uses as its socket. */
  socket (): Promise<Duplex>
  /** Writes a copy of the running cluster into a file, to start a `memory:` database from. */
  dump (file: string): Promise<void>
  /** Ends the worker and gives the directory back. */
  close (): Promise<void>
}

interface Answer { ready?: true, bytes?: Uint8Array, dumped?: true, closed?: true }

/**
 * Prepares the embedded database in a directory (or `memory:`), which stays locked until `close`.
 *
 * @param options.loadDataDir a file written by `dump`, for `memory:` only
 * @param options.onFatal called when the database cannot be opened: nothing but a restart helps then
 */
export async function openEmbedded (options: { dir: string, loadDataDir?: string | undefined, onFatal?: (error: Error) => void }) {
  const { dir, loadDataDir, onFatal = () => {} } = options
  const memory = dir === 'memory:'
  const unlock = memory ? () => {} : await claim(dir)
  const workerFile = import.meta.url.replace(/embedded(\.\w+)$/, 'embedded-worker$1')
  const workerData = { dir: memory ? undefined : path.resolve(dir, 'cluster'), loadDataDir }
  let worker: Worker | undefined
  let ended: Promise<unknown> = Promise.resolve()
  let closed = false

  async function socket () {
    // A second worker on the same files would destroy them: the one before must be gone
    await ended
    if (closed) throw new Error('The embedded database is closed')
    const started = worker = new Worker(new URL(workerFile), { workerData, execArgv: [] })
    ended = new Promise(resolve => started.once('exit', resolve))
    try {
      await heard(started, 'ready', OPEN_DEADLINE)
    } catch (error) {
      await started.terminate()
      const failure = new Error(`The embedded database does not open: ${(error as Error).message ?? 'its files cannot be read'}`, { cause: error })
      if (!closed) onFatal(failure)
      throw failure
    }
    return streamOf(started)
  }

  async function dump (file: string) {
    if (!worker) throw new Error('The embedded database is not open')
    worker.postMessage({ dump: file })
    await heard(worker, 'dumped', OPEN_DEADLINE)
  }

  async function close () {
    closed = true
    if (worker) await shut(worker)
    await ended
    unlock()
  }

  return { socket, dump, close } satisfies Embedded
}

// The wire protocol over the worker's message port
function streamOf (worker: Worker) {
  const stream = new Duplex({
    read () {},
    write (chunk: Buffer, _encoding, done) {
      worker.postMessage({ bytes: new Uint8Array(chunk) })
      done()
    },
    final (done) { shut(worker).then(() => done(), done) },
    destroy (error, done) { worker.terminate().then(() => done(error), () => done(error)) }
  })
  worker.on('message', ({ bytes }: Answer) => { if (bytes && !stream.destroyed) stream.push(Buffer.from(bytes)) })
  worker.on('error', () => stream.destroy())
  worker.once('exit', () => stream.destroy())
  // postgres.js ends a socket only in this state
  return Object.assign(stream, { readyState: 'open' })
}

// Closed in good order, the next start has nothing to recover
async function shut (worker: Worker) {
  if (worker.threadId !== -1) {
    worker.postMessage({ close: true })
    await heard(worker, 'closed', CLOSE_DEADLINE).catch(() => {})
  }
  await worker.terminate()
}

function heard (worker: Worker, word: 'ready' | 'dumped' | 'closed', deadline: number) {
  return new Promise<void>((resolve, reject) => {
    const done = (error?: Error) => {
      clearTimeout(timer)
      worker.off('message', message).off('error', done).off('exit', exit)
      if (error) reject(error)
      else resolve()
    }
    const message = (answer: Answer) => { if (answer[word]) done() }
    const exit = () => done(new Error('the worker ended'))
    const timer = setTimeout(() => done(new Error(`no answer within ${deadline / 1000} s`)), deadline)
    worker.on('message', message).on('error', done).on('exit', exit)
  })
}

async function claim (dir: string) {
  // PGlite makes its files readable to everybody: the directory is what keeps others out
  fs.mkdirSync(dir, { recursive: true, mode: 0o700 })
  const { mode, uid } = fs.statSync(dir)
  if (process.getuid && uid !== process.getuid()) throw new Error(`${path.resolve(dir)} belongs to another user`)
  if (process.platform !== 'win32' && (mode & 0o077) !== 0) {
    throw new Error(`${path.resolve(dir)} is open to other users: chmod 700 it`)
  }
  return await lockDirectory(dir)
}
