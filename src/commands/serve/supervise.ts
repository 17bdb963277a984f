import cluster, { type Worker } from 'node:cluster'
import { setTimeout as pause } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import type { Config } from '../../config.ts'
import { databaseError, tlsOf } from '../../db/database.ts'
import { commonCounters } from '../../http/limits/counters.ts'
import { createLog, standardLog } from '../../http/observability/log.ts'
import { createChannel, type Channel } from '../../telemetry/channel.ts'
import { createCommonMetrics } from '../../telemetry/worker-metrics.ts'
import { createMetrics, type Metrics } from '../../telemetry/metrics.ts'
import { measureProcess } from '../../telemetry/process.ts'
import { greet } from './greeting.ts'
import { handOver } from './hand-over.ts'
import { execProvider, keyHandlers, rememberingProvider, type KeyProvider } from '../common/key-provider.ts'
import { StartEnded, StartError } from '../common/command-errors.ts'
import { open } from '../common/open.ts'

export const SIGNALS = ['SIGTERM', 'SIGINT'] as const
/** Milliseconds after which a stopping process exits despite requests in progress. */
export const SHUTDOWN_TIMEOUT_MS = 9_500
/** The IPC message that stops a worker. */
export const STOP = 'stop'
/** Messages of a worker outside of the `Channel`: its port, or the reason of a failed start. */
export type FromWorker = { listening: number } | { failed: string }

const CLI = fileURLToPath(new URL('../../cli.js', import.meta.url))
// Workers are killed this long after `SHUTDOWN_TIMEOUT_MS`, so that a stop takes less than ten seconds after the
// shutdown delay.
const KILL_DELAY_MS = 250
const EARLY_FAILURE_MS = 30_000
const FIRST_PAUSE = 500
const LONGEST_PAUSE = 30_000

/** At the first SIGTERM or SIGINT, aborts `interrupted` and resolves `signal` with the name of the signal. */
export function untilSignal (): { interrupted: AbortSignal, signal: Promise<string> } {
  const interruption = new AbortController()
  const signal = new Promise<string>((resolve) => {
    for (const name of SIGNALS) {
      process.once(name, () => {
        interruption.abort(new StartEnded())
        resolve(name)
      })
    }
  })
  return { interrupted: interruption.signal, signal }
}

/** Exits on an uncaught error, because the state of the process is undefined afterwards. */
export function exitOnUncaughtErrors (exit: (reason: string, error: unknown) => never): void {
  for (const event of ['uncaughtException', 'unhandledRejection'] as const) {
    process.on(event, (error: unknown) => exit(event, error))
  }
}

/**
 * Serves with several processes until SIGTERM or SIGINT. The supervisor migrates the schema, creates the first
 * organization, prints the greeting and counts requests for rate limits. The supervisor handles no requests, so that no
 * request can crash it.
 */
export async function supervise (config: Config): Promise<number> {
  const log = createLog(config.logLevel, standardLog(true))
  const { interrupted, signal } = untilSignal()
  const provider = rememberingProvider(execProvider(config.keyCommands, interrupted))
  const opened = await open({ ...config, databasePool: 2 }, { creates: true, provider, waits: interrupted })
  const metrics = config.metricsToken === undefined ? undefined : await createMetrics()
  if (metrics !== undefined) measureProcess(metrics)
  const pool = createWorkers(config, log, metrics, provider)
  try {
    const weakness = config.databaseUrl && tlsOf(config.databaseUrl).weakness
    if (weakness) log.warn(weakness)
    // Open the port first: if it is in use, the start fails before `greet` creates credentials, which are shown once.
    const port = await Promise.race([pool.start(), signal.then(() => { throw new StartEnded() })])
    process.stdout.write(await greet(opened, config, port))
  } catch (error) {
    await pool.stop()
    // A signal to the process group can also end starting workers, so their failure is no error.
    if (interrupted.aborted) return 0
    throw error
  } finally {
    await opened.database.close()
  }
  exitOnUncaughtErrors((reason, error) => {
    log.fatal({ err: databaseError(error) }, reason)
    process.exit(1)
  })
  log.info({ signal: await Promise.race([signal, pool.lost]) }, 'stopping')
  for (const name of SIGNALS) {
    process.once(name, () => {
      pool.kill()
      process.exit(1)
    })
  }
  await pool.stop()
  return 0
}

interface Ended { pid?: number | undefined, code?: number | null, signal?: string | null, reason: string | undefined }

function createWorkers (
  { workers: size, shutdownDelay }: Config, log: ReturnType<typeof createLog>, metrics: Metrics | undefined,
  provider: KeyProvider
) {
  const counters = commonCounters(() => [...workers.values()].map(({ channel }) => channel))
  const measured = metrics && createCommonMetrics(metrics)
  const ends = metrics?.counter('strongroom_worker_ends_total', 'Workers that ended unexpectedly')
  /** The running workers; `requestedPort` replaces the configured port. */
  const workers = new Map<
    Worker, { isListening: boolean, requestedPort: number | undefined, channel: Channel, ended: Promise<unknown> }
  >()
  let port: number | undefined
  let isStopping = false
  let lose!: (error: StartError) => void
  /** Rejects when no worker is left and a replacement cannot start. */
  const lost = new Promise<never>((_resolve, reject) => { lose = reject })
  lost.catch(() => {})

  return {
    lost,
    /** Resolves with the port when all workers are listening; rejects if a worker ends before that. */
    async start (): Promise<number> {
      cluster.setupPrimary({ exec: CLI, args: ['serve'] })
      const ports = await Promise.all(Array.from({ length: size }, (_, i) => new Promise<number>((resolve, reject) => {
        keepRunning(String(i + 1), resolve, reject).catch(reject)
      })))
      port = ports[0]!
      return port
    },
    /** Lets the workers finish their requests; kills them after a timeout. */
    async stop (): Promise<void> {
      isStopping = true
      for (const [worker, { isListening }] of workers) {
        // A starting worker has no requests to finish and may not receive messages yet, so it is killed.
        if (isListening) worker.send(STOP, () => {})
        else worker.process.kill('SIGKILL')
      }
      const all = Promise.all([...workers.values()].map(({ ended }) => ended))
      const timeout = shutdownDelay * 1_000 + SHUTDOWN_TIMEOUT_MS + KILL_DELAY_MS
      await Promise.race([all, pause(timeout, undefined, { ref: false })])
      kill()
    },
    kill
  }

  function kill () {
    for (const worker of workers.keys()) worker.process.kill('SIGKILL')
  }

  // Runs a worker and replaces it when it ends: at once, or with exponential backoff after repeated early failures.
  async function keepRunning (
    place: string, started: (port: number) => void, failed: (error: Error) => void
  ): Promise<void> {
    for (let early = 0; ;) {
      const began = performance.now()
      const { pid, code, signal, reason } = await runWorker(place, started).catch((error: Error): Ended =>
        ({ reason: error.message }))
      if (isStopping) return
      if (port === undefined) {
        return failed(new StartError(reason ?? `A worker ended with ${signal ?? code} before all workers were listening`))
      }
      if (reason !== undefined && workers.size === 0) return lose(new StartError(reason))
      ends?.inc()
      early = performance.now() - began < EARLY_FAILURE_MS ? early + 1 : 0
      const wait = early < 2 ? 0 : Math.min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (early - 2))
      log.error({ worker: pid, code, signal, reason, replaced_in: wait }, 'worker ended')
      await pause(wait)
      if (isStopping) return
    }
  }

  // Resolves when the worker has ended; rejects if it cannot be started.
  async function runWorker (place: string, started: (port: number) => void): Promise<Ended> {
    // Node.js shares a port among workers that request the same number; 0 requests a random port. A worker requests the
    // same number as the other workers or, if no other worker is listening, the port that the greeting printed.
    const others = [...workers.values()].filter(({ isListening }) => isListening)
    const requestedPort = others.length > 0 ? others[0]!.requestedPort : port
    const worker = cluster.fork(requestedPort === undefined ? {} : { PORT: String(requestedPort) })
    const send = (message: object) => worker.isConnected() && worker.send(message, () => {})
    const channel = createChannel(send, { ...keyHandlers(provider), ...counters, ...measured?.handlers })
    const leaveMetrics = measured?.join(place, channel)
    let reason: string | undefined
    let isDisconnected = false
    worker.once('disconnect', () => { isDisconnected = true })
    const ended = new Promise<Ended>((resolve, reject) => {
      const { process: { pid } } = worker
      // Messages of the worker can arrive after `exit`, until `disconnect`.
      worker.once('exit', (code, signal) => {
        const end = () => resolve({ pid, code, signal, reason })
        if (isDisconnected) end()
        else worker.once('disconnect', end)
      })
      worker.on('error', (error) => { if (pid === undefined) reject(error) })
    }).finally(() => {
      leaveMetrics?.()
      workers.delete(worker)
    })
    handOver(worker, () =>
      [...workers].some(([other, { isListening }]) => other !== worker && isListening && other.isConnected()))
    const state = { isListening: false, requestedPort, channel, ended: ended.catch(() => {}) }
    workers.set(worker, state)
    worker.on('message', (message: FromWorker) => {
      if (channel.receive(message)) return
      if ('failed' in message) reason = message.failed
      else if ('listening' in message) {
        // The other workers ended while this worker started, so it got a different port.
        if (port !== undefined && message.listening !== port) worker.process.kill('SIGKILL')
        else state.isListening = true
        started(message.listening)
      }
    })
    return ended
  }
}
