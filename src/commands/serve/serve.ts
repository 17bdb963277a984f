import cluster, { type Worker } from 'node:cluster'
import type { FastifyInstance } from 'fastify'
import type { AddressInfo } from 'node:net'
import { setTimeout as pause } from 'node:timers/promises'
import { isLoopback, loadConfig, type Config } from '../../config.ts'
import { databaseError, tlsOf } from '../../db/database.ts'
import {
  countAtSupervisor, createCounters, shareCounters, workerCounters, type Counters
} from '../../http/limits/counters.ts'
import { standardLog } from '../../http/observability/log.ts'
import { createChannel } from '../../telemetry/channel.ts'
import { collectMetrics, metricsHandlers, type Measured } from '../../telemetry/worker-metrics.ts'
import { createMetrics, type Metrics } from '../../telemetry/metrics.ts'
import { greet } from './greeting.ts'
import { remoteProvider, type KeyProvider } from '../common/key-provider.ts'
import { command, type Environment, type Noun } from '../common/noun.ts'
import { lineOf, StartEnded, StartError } from '../common/command-errors.ts'
import { open, type Opened } from '../common/open.ts'
import { warn } from '../common/stdio.ts'
import { createOperator } from './operator.ts'
import { exitOnUncaughtErrors, SHUTDOWN_TIMEOUT_MS, SIGNALS, STOP, supervise, untilSignal, type FromWorker } from './supervise.ts'

const IDLE_SWEEP_MS = 200
const CLOSE_TIMEOUT_MS = 8_000
const JOBS = ['histories', 'removals', 'lateEvents', 'anchors', 'billing', 'calls', 'endingTokens'] as const
// The supervisor responds in less than a millisecond, or in a few milliseconds on a busy machine.
const COUNT_TIMEOUT_MS = 1_000

export const noun: Noun = {
  help: `  serve                                   migrate the schema and serve (variables: docs/operations/variables.md)
`,

  run: command({}, (_values, env) => serve(loadConfig(env), env))
}

/** Serves until SIGTERM or SIGINT. Resolves with the exit status after the shutdown. */
async function serve (config: Config, env: Environment): Promise<number> {
  if (cluster.worker !== undefined) return serveAsWorker(config, cluster.worker)
  if (config.publicUrl === undefined && !isLoopback(config.host)) {
    warn(`HOST is ${config.host}, but PUBLIC_URL is not set: other machines send tokens and secrets unencrypted. ` +
      'Set PUBLIC_URL to the https address of a proxy with TLS')
  }
  try {
    return await (config.workers > 1 ? supervise(config) : serveAlone(config, env))
  } catch (error) {
    if (error instanceof StartEnded) return 0
    throw error
  }
}

async function serveAlone (config: Config, env: Environment): Promise<number> {
  // Registered before the start, so that a signal during the start also stops the service gracefully.
  const { interrupted, signal } = untilSignal()
  // In the same turn, because a signal without a handler ends the process at once.
  interrupted.addEventListener('abort', () => {
    for (const name of SIGNALS) process.once(name, () => process.exit(1))
  })
  const operator = createOperator()
  return run(config, {
    interrupted,
    operator,
    async ready (opened, port, app) {
      process.stdout.write(await greet(opened, config, port))
      // The log line of a command replaces an audit event, so it is written at any log level. Commands that print links
      // need the port, which the system chooses for PORT=0.
      const log = app.log.child({}, { level: 'info' })
      operator.start({ opened, env: { ...env, PORT: String(port) }, log })
    },
    async end (app) {
      app.log.info({ signal: await signal }, 'stopping')
    }
  })
}

async function serveAsWorker (config: Config, worker: Worker): Promise<number> {
  const sendToSupervisor = (message: object) => {
    if (process.connected) process.send!(message, undefined, undefined, () => {})
    return process.connected
  }
  // Ignore signals to the process group: the supervisor handles them and stops the workers.
  for (const name of SIGNALS) process.on(name, () => {})
  let isListening = false
  let log: FastifyInstance['log'] | undefined
  const metrics = config.metricsToken === undefined ? undefined : await createMetrics()
  const own = createCounters()
  const channel = createChannel(sendToSupervisor, { ...metrics && metricsHandlers(metrics), ...workerCounters(own) })
  const counters = shareCounters(countAtSupervisor(channel), {
    at: 'supervisor',
    timeout: COUNT_TIMEOUT_MS,
    metrics,
    own,
    onChange (reason) {
      if (reason !== undefined) log?.warn('supervisor not responding: each worker counts limits separately')
      else log?.warn('limits are counted across all workers again')
    }
  })
  // Without this flag, Node.js exits at once when the supervisor disconnects, and aborts requests in progress.
  worker.exitedAfterDisconnect = true
  const stop = new Promise<void>((resolve) => {
    process.on('message', (message) => {
      if (message === STOP) resolve()
      else channel.receive(message)
    })
    process.once('disconnect', () => {
      // Without the supervisor, the worker cannot open a port.
      if (!isListening) process.exit(1)
      log?.error('supervisor disconnected: stopping')
      resolve()
    })
  })
  try {
    return await run(config, {
      counters,
      metrics,
      readMetrics: metrics && (() => collectMetrics(metrics, channel)),
      provider: remoteProvider(channel),
      async ready (_opened, port) {
        isListening = true
        sendToSupervisor({ listening: port } satisfies FromWorker)
      },
      async end (app) {
        ({ log } = app)
        await stop
      }
    })
  } catch (error) {
    // The supervisor reports the error once for all workers.
    await new Promise((resolve) => {
      process.send!({ failed: lineOf(error) } satisfies FromWorker, undefined, undefined, resolve)
    })
    return 1
  }
}

interface ServeOptions {
  counters?: Counters
  metrics?: Metrics | undefined
  /** Collects the metrics of all processes. */
  readMetrics?: (() => Promise<Measured>) | undefined
  /** Unwraps master keys. By default, this runs the configured command. */
  provider?: KeyProvider
  /** Aborts the wait for keys and for the database. Workers have no signal: the supervisor kills starting workers. */
  interrupted?: AbortSignal
  /** Runs commands of operators. Workers do not set this, because an embedded database has a single process. */
  operator?: ReturnType<typeof createOperator>
  /** Called when the port is open. */
  ready (opened: Opened, port: number, app: FastifyInstance): Promise<void>
  /** Resolves when the service has to stop. */
  end (app: FastifyInstance): Promise<void>
}

async function run (
  config: Config,
  { provider, interrupted: waits = new AbortController().signal, operator, ready, end, ...metering }: ServeOptions
): Promise<number> {
  let leaving = false
  let stopping = false
  let app: FastifyInstance | undefined
  // Import the application while the database is opened.
  const service = import('../../app.ts')
  const onFatal = (error: Error) => die('database failed; restart required', error)
  const opened = await open(config, { creates: true, onFatal, provider, waits, onRequest: operator?.onRequest })
  try {
    const { buildApp } = await service
    app = await buildApp({
      ...opened,
      ...metering,
      config,
      logStream: standardLog(cluster.isWorker),
      isLeaving: () => leaving,
      isStopping: () => stopping
    })
    const weakness = config.databaseUrl && tlsOf(config.databaseUrl).weakness
    if (weakness && cluster.isPrimary) app.log.warn(weakness)
    exitOnUncaughtErrors(die)

    // Open the port first: if it is in use, the start fails before `ready` creates credentials, which are shown once.
    const port = await listen(app, config)
    await ready(opened, port, app)
    for (const job of JOBS) app[job].start()

    await end(app)
    leaving = true
    await pause(config.shutdownDelay * 1_000)
    stopping = true
    // An unresponsive database must not block the shutdown.
    setTimeout(() => process.exit(0), SHUTDOWN_TIMEOUT_MS).unref()
    await Promise.all([close(app), operator?.stop()])
    return 0
  } finally {
    await opened.database.close()
  }

  function die (reason: string, error: unknown): never {
    app?.log.fatal({ err: databaseError(error) }, reason)
    process.exit(1)
  }
}

/** Advice for the operator, by the code of the error. */
const LISTEN_ADVICE: Record<string, string> = {
  EADDRINUSE: 'another program uses the port; stop that program, or set PORT to another port (0 picks a free one)',
  EADDRNOTAVAIL: 'this machine does not have the address; set HOST to an address of this machine, or to 0.0.0.0 for all',
  ENOTFOUND: 'the name has no address; set HOST to an address of this machine',
  EAI_AGAIN: 'the name cannot be resolved now; set HOST to an address of this machine',
  EAFNOSUPPORT: 'this machine has no addresses of this kind; set HOST to another address',
  EACCES: 'this user may not open the port; set PORT to 1024 or higher'
}

async function listen (app: FastifyInstance, { host, port }: Config): Promise<number> {
  try {
    await app.listen({ host, port })
  } catch (error) {
    await app.close()
    const { code = 'unknown error' } = error as NodeJS.ErrnoException
    throw new StartError(`Cannot listen on ${host}:${port} (${code}): ${LISTEN_ADVICE[code] ?? 'check HOST and PORT'}`)
  }
  return (app.server.address() as AddressInfo).port
}

// Closes idle connections during the shutdown, because clients can keep them open.
async function close (app: FastifyInstance): Promise<void> {
  const sweep = setInterval(() => app.server.closeIdleConnections(), IDLE_SWEEP_MS)
  const hard = setTimeout(() => app.server.closeAllConnections(), CLOSE_TIMEOUT_MS)
  await app.close()
  clearInterval(sweep)
  clearTimeout(hard)
}
