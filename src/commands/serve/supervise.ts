import cluster, { type Worker } from 'node:cluster'
import { setTimeout as pause } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import type { Config } from '../../config.ts'
import { databaseError, tlsOf } from '../../db/database.ts'
import { createCommonCounters } from '../../http/limits/counters.ts'
import { createLog, standardLog } from '../../http/observability/log.ts'
import { createChannel } from '../../telemetry/channel.ts'
import { createCommonMetrics } from '../../telemetry/worker-metrics.ts'
import { createMetrics, type Metrics } from '../../telemetry/metrics.ts'
import { measureProcess } from '../../telemetry/process.ts'
import { greet } from './greeting.ts'
import { handOver } from './hand-over.ts'
import { keyHandlers } from '../common/key-provider-ipc.ts'
import { execProvider, rememberingProvider, type KeyProvider } from '../common/key-provider.ts'
import { StartEnded, StartError } from '../common/errors.ts'
import { open } from '../common/open.ts'

export const SIGNALS = ['SIGTERM', 'SIGINT'] as const
/** Milliseconds after which a stopping process exits despite requests in progress. */
export const PATIENCE = 9_500
/** The IPC message that stops a worker. */
export const STOP = 'stop'
/** Messages of a worker outside its channel: its port, why it cannot listen, and requests to count. */
export type FromWorker = { listening: number } | { failed: string } | { counting: number }

const CLI = fileURLToPath(new URL('../../cli.js', import.meta.url))
// Milliseconds after the workers' timeout; the whole service stops within ten seconds.
const LAST = 250
// Milliseconds after which the end of a worker no longer counts as an early failure.
const SETTLED = 30_000
const FIRST_PAUSE = 500
const LONGEST_PAUSE = 30_000

/** Waits for the first SIGTERM or SIGINT, which interrupts a start or stops the service. */
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
 * Serves with several processes until SIGTERM or SIGINT. The supervisor migrates, creates the first organization,
 * prints the greeting and counts the rate limits. It handles no requests, so that no request can crash it.
 */
export async function supervise (config: Config): Promise<number> {
  const log = createLog(config.logLevel, standardLog(true))
  const { interrupted, signal } = untilSignal()
  const provider = rememberingProvider(execProvider(config.keyCommands, interrupted))
  const opened = await open({ ...config, databasePool: 2 }, { provider, waits: interrupted })
  const metrics = config.metricsToken === undefined ? undefined : await createMetrics()
  if (metrics !== undefined) measureProcess(metrics)
  const crew = createCrew(config, log, metrics, provider)
  try {
    const weakness = config.databaseUrl && tlsOf(config.databaseUrl).weakness
    if (weakness) log.warn(weakness)
    // Open the port before the initialization: otherwise a used port would lose the printed credentials.
    const port = await Promise.race([crew.start(), signal.then(() => { throw new StartEnded() })])
    process.stdout.write(await greet(opened, config, port))
  } catch (error) {
    await crew.stop()
    // A signal to the process group also kills workers that are starting.
    if (interrupted.aborted) return 0
    throw error
  } finally {
    await opened.database.close()
  }
  exitOnUncaughtErrors((reason, error) => {
    log.fatal({ err: databaseError(error) }, reason)
    process.exit(1)
  })
  log.info({ signal: await Promise.race([signal, crew.lost]) }, 'stopping')
  for (const name of SIGNALS) {
    process.once(name, () => {
      crew.kill()
      process.exit(1)
    })
  }
  await crew.stop()
  return 0
}

interface Ended { pid?: number | undefined, code?: number | null, signal?: string | null, reason: string | undefined }

function createCrew (
  { workers: size, shutdownDelay }: Config, log: ReturnType<typeof createLog>, metrics: Metrics | undefined,
  provider: KeyProvider
) {
  const counters = createCommonCounters()
  const measured = metrics && createCommonMetrics(metrics)
  const ends = metrics?.counter('strongroom_worker_ends_total', 'Workers that ended unexpectedly')
  /** The running workers; `asked` is the port that replaces the configured one. */
  const workers = new Map<Worker, { isListening: boolean, asked: number | undefined, ended: Promise<unknown> }>()
  let port: number | undefined
  let isStopping = false
  let lose!: (error: StartError) => void
  /** Rejects when no worker is left and a replacement cannot start. */
  const lost = new Promise<never>((_resolve, reject) => { lose = reject })
  lost.catch(() => {})

  return {
    lost,
    /** Resolves with the port on which all of them listen; rejects with the reason of the first that cannot. */
    async start (): Promise<number> {
      cluster.setupPrimary({ exec: CLI, args: ['serve'] })
      // A worker that cannot listen, or ends before all are listening, fails the start.
      const ports = await Promise.all(Array.from({ length: size }, (_, i) => new Promise<number>((resolve, reject) => {
        keep(String(i + 1), resolve, reject).catch(reject)
      })))
      port = ports[0]!
      return port
    },
    /** Workers finish their requests; after the timeout they are killed. */
    async stop (): Promise<void> {
      isStopping = true
      for (const [worker, { isListening }] of workers) {
        // A starting worker may not receive messages yet, and has no requests to finish.
        if (isListening) worker.send(STOP, () => {})
        else worker.process.kill('SIGKILL')
      }
      const all = Promise.all([...workers.values()].map(({ ended }) => ended))
      await Promise.race([all, pause(shutdownDelay * 1_000 + PATIENCE + LAST, undefined, { ref: false })])
      kill()
    },
    kill
  }

  function kill () {
    for (const worker of workers.keys()) worker.process.kill('SIGKILL')
  }

  // Replaces a worker when it ends: at once, or with exponential backoff after repeated early failures.
  async function keep (
    place: string, started: (port: number) => void, failed: (error: Error) => void
  ): Promise<void> {
    for (let early = 0; ;) {
      const began = performance.now()
      const { pid, code, signal, reason } = await employ(place, started).catch((error: Error): Ended =>
        ({ reason: error.message }))
      if (isStopping) return
      if (port === undefined) {
        return failed(new StartError(reason ?? `A worker ended with ${signal ?? code} before all workers were listening`))
      }
      if (reason !== undefined && workers.size === 0) return lose(new StartError(reason))
      ends?.inc()
      early = performance.now() - began < SETTLED ? early + 1 : 0
      const wait = early < 2 ? 0 : Math.min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (early - 2))
      log.error({ worker: pid, code, signal, reason, replaced_in: wait }, 'worker ended')
      await pause(wait)
      if (isStopping) return
    }
  }

  // Starts a worker and resolves when it has ended; rejects when it could not be started.
  async function employ (place: string, started: (port: number) => void): Promise<Ended> {
    // With PORT=0, Node.js shares a random port only among workers that request the same port number. When no worker
    // listens any more, request the printed port explicitly.
    const others = [...workers.values()].filter(({ isListening }) => isListening)
    const asked = others.length > 0 ? others[0]!.asked : port
    const worker = cluster.fork(asked === undefined ? {} : { PORT: String(asked) })
    const send = (message: object) => worker.isConnected() && worker.send(message, () => {})
    const member = counters.join(send)
    const channel = createChannel(send, { ...keyHandlers(provider), ...measured?.handlers })
    const leaveMetrics = measured?.join(place, channel)
    let reason: string | undefined
    let isDisconnected = false
    worker.once('disconnect', () => { isDisconnected = true })
    const ended = new Promise<Ended>((resolve, reject) => {
      const { process: { pid } } = worker
      // The last messages of a worker can arrive after `exit`.
      worker.once('exit', (code, signal) => {
        const end = () => resolve({ pid, code, signal, reason })
        if (isDisconnected) end()
        else worker.once('disconnect', end)
      })
      worker.on('error', (error) => { if (pid === undefined) reject(error) })
    }).finally(() => {
      member.leave()
      leaveMetrics?.()
      workers.delete(worker)
    })
    handOver(worker, () =>
      [...workers].some(([other, { isListening }]) => other !== worker && isListening && other.isConnected()))
    const state = { isListening: false, asked, ended: ended.catch(() => {}) }
    workers.set(worker, state)
    worker.on('message', (message: FromWorker) => {
      if (channel.receive(message)) return
      if ('failed' in message) reason = message.failed
      else if ('listening' in message) {
        // The workers that shared the port have ended meanwhile, so this one got a new port.
        if (port !== undefined && message.listening !== port) worker.process.kill('SIGKILL')
        else state.isListening = true
        started(message.listening)
      } else member.receive(message)
    })
    return ended
  }
}
