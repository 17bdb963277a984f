import cors from '@fastify/cors'
import Fastify, { LogController, type FastifyInstance } from 'fastify'
import type { Socket } from 'node:net'
import { ulid } from 'ulidx'
import { httpAddress, type Config } from './config.ts'
import { createReadRecorder } from './changes/change.ts'
import { recordOfPerson } from './changes/late.ts'
import { queueOf } from './changes/queue.ts'
import { COSTS, type Costs } from './crypto/costs.ts'
import { manual, type Provider } from './billing/provider.ts'
import { createSellerWarning } from './billing/invoicing.ts'
import { createBillingWorker } from './billing/worker.ts'
import type { Keyring } from './crypto/keyring.ts'
import { nonce } from './crypto/primitives.ts'
import { findAuthority, type Database } from './db/database.ts'
import { transaction } from './changes/transaction.ts'
import { installAccess } from './http/guard/access.ts'
import { installDryRuns } from './http/guard/dry-runs.ts'
import { installGoSdkCompat } from './http/routes/go-sdk-compat.ts'
import { installClient } from './http/contract/client-file.ts'
import { installConsole, isLostInConsole } from './http/pages/console.ts'
import { seeOther } from './http/pages/pages.ts'
import { installAliases } from './http/routes/aliases.ts'
import { installBodyParser } from './http/bodies/body.ts'
import { answerByHand, type HandWritten } from './http/responses/raw-response.ts'
import { createCounters, type Counters } from './http/limits/counters.ts'
import { installErrors, sendError } from './http/responses/error-responses.ts'
import { installHeaders, LEFT_OUT_HEADER, setHeaders } from './http/responses/headers.ts'
import { limitUnsent } from './http/responses/unsent.ts'
import { installEtags } from './http/repeats/etags.ts'
import { health } from './http/observability/health.ts'
import { childOf, createRequestLog, loggerOptions, requestId, standardLog, type LogStream } from './http/observability/log.ts'
import { installIdempotency } from './http/repeats/idempotency.ts'
import { createRefusals, installMetrics, measureDatabase, measureRequests } from './http/observability/metrics.ts'
import { installMethods } from './http/routes/methods.ts'
import { installPathParams, installQueryParams } from './http/routes/params.ts'
import type { Domain } from './http/routes/types.ts'
import { installDocs, installOpenApi } from './http/contract/openapi.ts'
import { installLevelLookup } from './http/guard/level-lookup.ts'
import { countInRedis } from './http/limits/redis.ts'
import { requestFormatError } from './http/bodies/request-format.ts'
import { serializerCompiler } from './http/responses/serialization.ts'
import { endTrace, installTraces } from './http/observability/traces.ts'
import { validatorCompiler } from './http/bodies/validation.ts'
import { createMailer } from './mail/mailer.ts'
import { createOutbox } from './mail/outbox.ts'
import { createOutgoing } from './outgoing/client.ts'
import { audit } from './plugins/audit.ts'
import { changes } from './plugins/documents/changes.ts'
import { cli } from './plugins/cli.ts'
import { diff } from './plugins/documents/diff.ts'
import { matrix } from './plugins/documents/matrix.ts'
import { nameSearch } from './plugins/documents/name-search.ts'
import { names } from './plugins/documents/names.ts'
import { encryptionKeys } from './plugins/encryption-keys.ts'
import { invoices } from './plugins/billing/invoices.ts'
import { invitations } from './plugins/people/invitations.ts'
import { memberAccess } from './plugins/people/member-access.ts'
import { members } from './plugins/people/members.ts'
import { oauth } from './plugins/oauth/index.ts'
import { organizations } from './plugins/organizations.ts'
import { payments } from './plugins/billing/payments.ts'
import { environments, targets } from './plugins/places.ts'
import { plans } from './plugins/billing/plans.ts'
import { projects } from './plugins/projects.ts'
import { secrets } from './plugins/secrets.ts'
import { subscriptions } from './plugins/billing/subscriptions.ts'
import { teams } from './plugins/people/teams.ts'
import { tokens } from './plugins/people/tokens.ts'
import { user } from './plugins/people/user.ts'
import { versions } from './plugins/versions.ts'
import { workloads } from './plugins/people/workloads.ts'
import { createPersonalEvent } from './repositories/people/personal-events.ts'
import { ApiError } from './rules/api-error.ts'
import type { Measured } from './telemetry/worker-metrics.ts'
import { createMetrics, type Metrics } from './telemetry/metrics.ts'
import { measureProcess } from './telemetry/process.ts'
import { createTracer } from './telemetry/traces.ts'
import { createAnswerSeal } from './vault/keys/keys.ts'
import { createAnchorWorker } from './jobs/anchors.ts'
import { createLateEventWorker } from './jobs/late-events.ts'
import { createRemovalWorker } from './jobs/cleanup.ts'
import { createEndingTokenMailer } from './jobs/ending-tokens.ts'
import { createHistoryWorker } from './jobs/history.ts'
import { createCallCounter } from './jobs/usage.ts'
import { createIssuers, ISSUER_LIMITS } from './workloads/issuers.ts'

// The plugins under /api/v1, by their tag in the OpenAPI document. The tags are in the order in which a new user needs
// them. The OAuth plugin is registered separately, because its standard paths have no prefix.
const DOMAINS: Record<string, [description: string, ...plugins: Domain[]]> = {
  organizations: ['Organizations, which own all other resources', organizations],
  projects: ['Projects of an organization, with a key each', projects],
  targets: ['Targets of a project', targets],
  environments: ['Environments of a target', environments],
  secrets: ['Encrypted documents, one for each level', secrets, names, nameSearch, matrix, diff, changes],
  versions: ['Version history: list, fetch, restore, delete, purge', versions],
  'encryption-keys': ['Keys of projects', encryptionKeys],
  'api-tokens': ['Organization API tokens', tokens],
  workloads: ['Trust rules for machines that have a token of their platform', workloads],
  users: ['The caller', user],
  members: ['Members of an organization and their roles', members, memberAccess, invitations],
  teams: ['Members who share roles in projects', teams],
  audit: ['Audit log of an organization', audit],
  billing: ['Plans, subscriptions, payments and invoices', plans, subscriptions, payments, invoices]
}

const MAX_URL_LENGTH = 8192
const MAX_HEADERS = 100

export interface AppDependencies {
  config: Config
  database: Database
  keyring: Keyring
  /** Cost parameters of key derivations and password hashes; tests pass lower costs. */
  costs?: Costs
  logStream?: LogStream
  /** Whether a shutdown has begun. Then `/readyz` fails, and each connection is closed after its next response. */
  isLeaving?: () => boolean
  /** Whether new requests get 503. */
  isStopping?: () => boolean
  /** Milliseconds for which the guard's checks are valid. If the body arrives later, the guard repeats the checks. */
  recheckAfter?: number
  /** The payment provider; by default, payments are manual. */
  provider?: Provider
  /** Timeout of the payment provider in milliseconds. */
  patienceOfProvider?: number | undefined
  /** Rate-limit counters. With Redis, they are used only while Redis fails. Default: counters in this process. */
  counters?: Counters | undefined
  /** The metrics registry of this process. Default: a new registry. Not used without METRICS_TOKEN. */
  metrics?: Metrics | undefined
  /** Reads the metrics of all processes of the service. Default: reads only the metrics of this process. */
  readMetrics?: (() => Promise<Measured>) | undefined
}

/** Builds the Fastify instance without listening. */
export async function buildApp (
  {
    config, database, keyring, costs = COSTS, logStream = standardLog(), isStopping = () => false,
    isLeaving = isStopping, recheckAfter, counters = createCounters(), provider = manual, patienceOfProvider,
    metrics: given, readMetrics
  }: AppDependencies
): Promise<FastifyInstance> {
  const { metricsToken, traces } = config
  const metrics = metricsToken === undefined ? undefined : given ?? await createMetrics()
  const refusals = createRefusals()
  const requestLog = createRequestLog(config, logStream, [
    ...metrics === undefined ? [] : [measureRequests(metrics, refusals)], ...traces === undefined ? [] : [endTrace]
  ])
  const app: FastifyInstance = Fastify({
    logger: loggerOptions(config.logLevel, logStream),
    childLoggerFactory: childOf,
    logController: new LogController({ disableRequestLogging: true }),
    genReqId: (request) => requestId(request.headers['x-request-id'], newRequestId),
    bodyLimit: config.bodyLimit,
    trustProxy: config.trustProxy,
    rewriteUrl: withoutBase(config.publicUrl),
    requestTimeout: 15_000,
    // A long operation takes up to a minute, after a wait of up to a minute for its connection of the database.
    connectionTimeout: 125_000,
    keepAliveTimeout: 72_000,
    forceCloseConnections: 'idle',
    return503OnClosing: false,
    exposeHeadRoutes: true,
    // Prevents Fastify from loading its own compilers. The cast is needed because of the types of Fastify.
    schemaController: {
      compilersFactory: { buildValidator: () => validatorCompiler, buildSerializer: () => serializerCompiler } as object
    },
    routerOptions: { maxParamLength: 128, caseSensitive: true, ignoreTrailingSlash: false },
    // The guard, not Node.js, refuses requests without `Host`, so that the rate limit counts the refused requests.
    http: { headersTimeout: 10_000, connectionsCheckingInterval: 1_000, requireHostHeader: false } as object,
    // Fastify runs no hooks for an invalid path, so this handler sets up the log line and the headers.
    frameworkErrors: (_error, request, reply) => {
      requestLog.watch(request, reply)
      setHeaders(config, request, reply)
      const problem = requestFormatError(request)
      if (problem === undefined && config.console && isLostInConsole(request)) seeOther(reply, '/console/')
      else sendError(request, reply, problem ?? new ApiError('not_found'))
    },
    clientErrorHandler: (error: Error & { code?: string }, socket) => {
      // A browser opens connections in advance, and takes a response there for the response to its first request.
      if (error.code === 'ECONNRESET' || socket.bytesRead === 0) socket.destroy()
      else {
        const code = error.code === 'HPE_HEADER_OVERFLOW' ? 'header_fields_too_large' : 'malformed_request'
        answerBeside(socket, code, error.code === 'HPE_INVALID_EOF_STATE')
      }
    }
  })
  const answerBeside = (socket: Socket, ...answer: [code: HandWritten, isDisconnected?: boolean]) => {
    const id = newRequestId()
    const answered = answerByHand(config, socket, id, ...answer)
    if (answered !== undefined) requestLog.answered(socket, id, answered)
  }
  app.server.on('connect', (_request, socket: Socket) => answerBeside(socket, 'method_not_allowed'))
  // Node.js silently drops headers above this limit. It is one above MAX_HEADERS, so that a hook can detect too many.
  app.server.maxHeadersCount = MAX_HEADERS + 1
  const { db, reads, lists, pages, longTransactions } = database
  decorate(app, { db, reads, lists, pages, longTransactions, keyring, costs, config })
  // With `off`, the embedded database would write its log (WAL) only at the next synchronous commit.
  const commitOfReads = database.kind === 'embedded' ? 'on' : 'off'
  decorate(app, {
    recordRead: createReadRecorder(db, commitOfReads),
    recordAlone: createReadRecorder(db, 'on'),
    recordRefused: async (own, actors, event) => transaction(db, async (db) => {
      await createPersonalEvent(db, own)
      return recordOfPerson(db, actors, event, { isRefusal: true, synchronousCommit: commitOfReads })
    }),
    issuer: issuerOf(app, config)
  })
  const warn = (line: string) => app.log.warn(line)
  const outbox = createOutbox(createMailer(config, warn), config.smtp !== undefined, warn)
  app.addHook('onClose', outbox.settled)
  const invoicing = { ...config.invoices, provider, warnOfSeller: createSellerWarning(warn) }
  const { defaultPlan } = config
  const background = { db: database.background, log: app.log }
  const workers = {
    histories: createHistoryWorker({ ...background, keyring }),
    removals: createRemovalWorker(background),
    lateEvents: createLateEventWorker(background),
    billing: createBillingWorker({ ...background, invoicing, defaultPlan, patience: patienceOfProvider }),
    calls: createCallCounter(background),
    endingTokens: createEndingTokenMailer({ ...background, outbox, service: () => app.issuer() })
  }
  const anchors = createAnchorWorker(background)
  const issuers = createIssuers(createOutgoing(config.outgoing, ISSUER_LIMITS), warn)
  decorate(app, { outbox, issuers, invoicing, ...workers, anchors })
  app.addHook('onResponse', ({ principal }, { statusCode }, done) => {
    if (principal !== null && statusCode !== 429) workers.calls.count(principal.organization.id)
    done()
  })
  app.addHook('onClose', async () => {
    await Promise.all(Object.values(workers).map((worker) => worker.stop()))
    await anchors.stop()
  })
  findAuthority(database.db)?.logTo(app.log)

  requestLog.install(app)
  if (traces !== undefined) installTraces(app, await createTracer(traces, metrics, warn))
  installHeaders(app)
  limitUnsent(app)
  installErrors(app)
  installBodyParser(app)
  app.addHook('onRequest', (request, reply, done) => {
    const isLast = isStopping() && request.routeOptions.url !== '/healthz'
    const hasTooMany = request.raw.rawHeaders.length > 2 * MAX_HEADERS
    if (isLast || isLeaving() || hasTooMany) reply.header('connection', 'close')
    if (isLast) done(new ApiError('service_unavailable'))
    else if (request.url.length > MAX_URL_LENGTH) done(new ApiError('uri_too_long'))
    else if (hasTooMany) done(new ApiError('header_fields_too_large'))
    // Check OPTIONS requests here, because the CORS plugin answers preflights before the guard runs.
    else if (request.method === 'OPTIONS') done(requestFormatError(request))
    else done()
  })
  if (config.corsOrigins.length > 0) {
    await app.register(cors, {
      origin: config.corsOrigins,
      methods: ['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE'],
      allowedHeaders: [
        'Authorization', 'Content-Type', 'X-API-Version', 'If-Match', 'If-None-Match', 'Idempotency-Key'
      ],
      exposedHeaders: [
        'X-RateLimit-Limit', 'X-RateLimit-Remaining', 'X-RateLimit-Reset', 'Retry-After', 'X-Request-Id', 'ETag',
        'Idempotent-Replayed', 'Link', LEFT_OUT_HEADER
      ],
      maxAge: 600
    })
  }
  await installOpenApi(app, Object.fromEntries(Object.entries(DOMAINS).map(([tag, [text]]) => [tag, text])))
  installMethods(app)
  // Install before the guard: its `onRoute` hook throws for routes without `access`, such as routes of libraries.
  await installDocs(app)
  await installClient(app)
  if (config.console) await installConsole(app)
  installPathParams(app)
  installDryRuns(app)
  installQueryParams(app)
  installAliases(app)
  installEtags(app)
  installIdempotency(app, createAnswerSeal(keyring))
  const { redis } = config
  const common = redis === undefined ? counters : await countInRedis(app, redis, counters, metrics)
  decorate(app, { counters: common })
  await installAccess(app, common, recheckAfter)
  installLevelLookup(app)
  installGoSdkCompat(app)
  await app.register(health(database, isLeaving))
  if (metricsToken !== undefined && metrics !== undefined) {
    measureDatabase(metrics, database, queueOf(db).figures, refusals)
    metrics.watch('gauge', 'strongroom_requests_under_way', 'Requests in progress', requestLog.underWay)
    metrics.watch('gauge', 'strongroom_mails_under_way', 'Mails being sent', () => outbox.load().underWay)
    metrics.watch('gauge', 'strongroom_mails_waiting', 'Mails waiting to be sent', () => outbox.load().waiting)
    const endMeasuring = measureProcess(metrics)
    app.addHook('onClose', async () => endMeasuring())
    installMetrics(app, metricsToken, database, readMetrics ?? (async () => [await metrics.read()]))
  }
  await app.register(oauth)
  for (const [tag, [, ...plugins]] of Object.entries(DOMAINS)) {
    await app.register(async (domain) => {
      domain.addHook('onRoute', (route) => { route.schema = { tags: [tag], ...route.schema } })
      for (const plugin of plugins) await domain.register(plugin)
    }, { prefix: '/api/v1' })
  }
  await app.register(cli, { prefix: '/api/v1' })
  return app
}

function decorate (app: FastifyInstance, members: Partial<FastifyInstance>) {
  for (const [name, value] of Object.entries(members)) app.decorate<unknown>(name, value)
}

// Removes the base path of PUBLIC_URL from a request's URL, unless a proxy has already removed it.
function withoutBase (publicUrl: string | undefined) {
  const base = publicUrl === undefined ? '/' : new URL(publicUrl).pathname
  return ({ url = '/' }: { url?: string }): string =>
    base !== '/' && (url.startsWith(`${base}/`) || url.startsWith(`${base}?`) || url === base)
      ? url.slice(base.length) || '/'
      : url
}

// Returns PUBLIC_URL. Without PUBLIC_URL, returns the address on which the service listens or will listen.
function issuerOf (app: FastifyInstance, { publicUrl, host, port }: Config): () => string {
  let known = publicUrl
  return () => {
    if (known !== undefined) return known
    const address = app.server.address()
    if (typeof address !== 'object' || address === null) return httpAddress(host, port)
    known = httpAddress(host, address.port)
    return known
  }
}

// Takes all random bytes of an id from `nonce`. By default, ulidx calls the random generator of the system for each of
// the 16 random characters, which is ten times as slow.
function newRequestId (): string {
  const bytes = nonce(16)
  let used = 0
  return ulid(undefined, () => bytes[used++]! / 256)
}
