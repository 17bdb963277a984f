import type { Static, TSchema } from '@sinclair/typebox'
import type { FastifyPluginAsync, FastifyRequest, FastifyTypeProvider, RawServerDefault } from 'fastify'
import type { ErrorCode } from '../../../schemas/errors.ts'
import type { EventName } from '../../../schemas/events.ts'
import type { Scope } from '../../../schemas/scopes.ts'
import type { Config } from '../../config.ts'
import type { Costs } from '../../crypto/costs.ts'
import type { Keyring } from '../../crypto/keyring.ts'
import type { Database } from '../../db/database.ts'
import type { Outbox } from '../../mail/outbox.ts'
import type { Actor, AuditEvent, RecordRead } from '../../repositories/audit/audit.ts'
import type { UserCall } from '../../repositories/people/oauth.ts'
import type { PersonalEvent } from '../../repositories/people/personal-events.ts'
import type { Principal } from '../../repositories/people/principals.ts'
import type { AnyOf, TeamRole } from '../../rules/roles.ts'
import type { Issuers } from '../../workloads/issuers.ts'
import type { Counters } from '../limits/counters.ts'
import type { LimitGroup } from '../limits/limits.ts'

interface TypeBoxProvider extends FastifyTypeProvider {
  validator: this['schema'] extends TSchema ? Static<this['schema']> : unknown
  serializer: this['schema'] extends TSchema ? Static<this['schema']> : unknown
}

/** A Fastify plugin whose routes are typed by their schemas. */
export type Domain = FastifyPluginAsync<Record<never, never>, RawServerDefault, TypeBoxProvider>

/** Required scopes that the caller has only by team roles, and these roles (null until the project is looked up). */
interface ByTeams { needs: readonly AnyOf[], teams: readonly TeamRole[] | null }

/** A background job; call `wake` after adding work. */
interface Worker { start (): void, wake (): void, stop (): Promise<void> }

/**
 * A rule that no schema can express and that needs no database. `check` throws 422 with the names of the invalid
 * members. Rules apply to the body of the request, or to the query if the route has no body.
 */
export type Rule = MemberRule | ElementRule

interface MemberRule {
  /** The members that the rule reads; default: all. The rule is skipped if the schema rejects one of them. */
  reads?: readonly string[]
  each?: never
  check: (request: FastifyRequest) => void
}

interface ElementRule {
  /** The list whose elements the rule checks, except for elements that the schema rejects. */
  each: string
  /** `path` is the name of the element in an error, such as `versions.0`. */
  check: (element: never, path: string, request: FastifyRequest) => void
}

declare module 'fastify' {
  interface FastifyContextConfig {
    /** Required access: none, any valid token, or a token with this scope or all of these scopes. */
    access?: 'public' | 'authenticated' | Scope | readonly [Scope, ...Scope[]]
    /**
     * For requests that satisfy `when`, one of these scopes is enough instead of `access`. `when` runs before
     * validation.
     */
    lessAccess?: { anyOf: AnyOf, when: (request: FastifyRequest) => boolean }
    /** Scopes that the handler may require in addition or instead, depending on the request. */
    mayNeed?: readonly Scope[]
    /**
     * For lists of projects: the guard accepts callers who have the scope only by a team's role. The handler must list
     * only the projects in which a role grants the scope. Not for repeatable routes: a replay skips the handler.
     */
    filtersInHandler?: true
    /** The rate-limit group; `none` for health checks, metrics and discovery documents. */
    limit?: LimitGroup | 'none'
    /**
     * The rate-limit group of the route's expensive effect. The handler calls `countEffect` right before the effect, so
     * that rejected requests do not use up the limit. The request also counts in `limit`, except with `insteadOf`.
     */
    limitOfEffect?: LimitGroup
    /** The rate-limit group of a dry run that is as expensive as the effect, instead of `limitOfEffect`. */
    limitOfDryRun?: LimitGroup
    /** The body may have NUL characters. For routes that store these only in documents, never in a text column. */
    allowsNul?: true
    /** Rules beyond the schema. They run before the look-up of the level or of a stored response. */
    rules?: readonly Rule[]
    /** Error codes of the handler, in addition to the codes of every route. */
    errors?: readonly ErrorCode[]
    /**
     * The audit events that the route can record. A change always records one; a read only if it reveals a secret.
     * `none` for a POST that only reads.
     */
    audit?: EventName | readonly EventName[] | 'none'
    /** The format of responses outside of the API: OAuth (RFC 6749) or HTML. The plugin also formats its errors. */
    responseFormat?: 'oauth' | 'html'
    /** Cache-Control of successful responses; default `no-store`. */
    cache?: string
    /** The route also works if the organization is suspended, locked or cancelled. */
    whenInactive?: true
    /** The handler checks the required second factor itself: a member without a second factor may leave. */
    asksForSecondFactor?: true
  }
  interface FastifyInstance extends Pick<Database, 'db' | 'reads' | 'lists' | 'pages' | 'longTransactions'> {
    /** Records the audit event of a read. The handler must wait until it is recorded before it sends the response. */
    recordRead: RecordRead
    /** Records an event that follows from an error. A crash of the database does not lose the event. */
    recordAlone: RecordRead
    /** Records a failed sign-in for the user and each actor. True if an event is not in its audit chain yet. */
    recordRefused (own: PersonalEvent, actors: readonly Actor[], event: AuditEvent): Promise<boolean>
    /** The counters of rate limits. */
    counters: Counters
    keyring: Keyring
    costs: Costs
    config: Config
    /** The public URL of this service without a trailing slash: PUBLIC_URL, or the listening address. */
    issuer (): string
    /** The queue of e-mails; requests do not wait until an e-mail is sent. */
    outbox: Outbox
    /** The key sets of the issuers of workloads. */
    issuers: Issuers
    /**
     * Counts the effect of a request once in its route's `limitOfEffect`; 429 if the limit is exceeded. If the route
     * supports `Idempotency-Key`, call this in the transaction of the change, so that repeated requests do not count.
     */
    countEffect (request: FastifyRequest, reply: FastifyReply): Promise<void>
    /**
     * Call this in a handler after a wait. If the caller was checked some time ago, checks again whether the caller may
     * do this; ends the request if not. `principalOf`, `levelOf` and `slicesOf` may then return other values.
     */
    authorizeAgain (request: FastifyRequest): Promise<void>
    /** Counts a sign-in attempt by address if the browser is not a known device of the account; 429 above the limit. */
    countStranger (request: FastifyRequest, reply: FastifyReply): Promise<void>
    /** Re-encrypts histories in the background. */
    histories: Worker
    /** Cleans up purged and deleted rows in the background. */
    removals: Worker
    /** Appends late audit events to their chains in the background. */
    lateEvents: Worker
    /** Writes the ends of audit chains to the log. */
    anchors: Worker
    /** Renews subscriptions and calls the payment provider in the background. */
    billing: Worker
    /** Writes the API calls of organizations to the database in the background. */
    calls: Worker & { record (): Promise<void> }
    /** Mails owners about API tokens that end soon. */
    endingTokens: Worker
    invoicing: Config['invoices'] & { warnOfSeller: () => void, provider: { name: string } }
  }
  interface FastifyRequest {
    /** The caller in the organization of the request. */
    principal: Principal | null
    /** The user of the access token; null for API tokens and workloads. */
    user: UserCall | null
    /** Whether the request recorded audit events that a background job has yet to append to their chains. */
    hasLateEvents: boolean
    /** Whether the request ended API tokens, which the background cleanup may have to delete. */
    hasEnded: boolean
    isEffectCounted: boolean
    /** The scopes that the caller has only by team roles; null if the caller's own role is enough. */
    byTeams: ByTeams | null
    /** The scopes that were required so far, each as the list of which one is enough. */
    required: AnyOf[] | null
    /** Milliseconds that the request has waited for the database (`waitFor`). */
    waited: number
    /** When the guard checked the caller, by `performance.now()`. */
    validatedAt: number
  }
}
