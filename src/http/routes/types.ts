import type { Static, TSchema } from '@sinclair/typebox'
import type { FastifyPluginAsync, FastifyTypeProvider, RawServerDefault } from 'fastify'
import type { ErrorCode } from '../../../schemas/errors.ts'
import type { EventName } from '../../../schemas/events.ts'
import type { Scope } from '../../../schemas/scopes.ts'
import type { Party } from '../../../schemas/billing.ts'
import type { Config } from '../../config.ts'
import type { Costs } from '../../crypto/costs.ts'
import type { Keyring } from '../../crypto/keyring.ts'
import type { Database, Db } from '../../db/database.ts'
import type { Outbox } from '../../mail/outbox.ts'
import type { Actor, AuditEvent, RecordRead } from '../../repositories/audit/audit.ts'
import type { UserCall } from '../../repositories/people/oauth.ts'
import type { PersonalEvent } from '../../repositories/people/personal-events.ts'
import type { Principal } from '../../repositories/people/principals.ts'
import type { TeamRole } from '../../rules/roles.ts'
import type { LimitGroup } from '../limits/limits.ts'
import type { CallCounter } from '../limits/usage.ts'

export interface TypeBoxProvider extends FastifyTypeProvider {
  validator: this['schema'] extends TSchema ? Static<this['schema']> : unknown
  serializer: this['schema'] extends TSchema ? Static<this['schema']> : unknown
}

/** A domain: an encapsulated plugin whose routes are typed by their schemas. */
export type Domain = FastifyPluginAsync<Record<never, never>, RawServerDefault, TypeBoxProvider>

/**
 * Scopes that a caller holds by roles through teams alone, and those roles in the project of the request; null until
 * that project is found.
 */
export interface ByTeams { scopes: readonly Scope[], teams: readonly TeamRole[] | null }

declare module 'fastify' {
  interface FastifyContextConfig {
    /** Who may call: nobody in particular, anybody with a token, or a token with this scope, or with all of these. */
    access?: 'public' | 'authenticated' | Scope | readonly [Scope, ...Scope[]]
    /** Scopes that the handler may demand instead or on top, by what the request asks. */
    mayNeed?: readonly Scope[]
    /**
     * Of a list of projects: the guard lets in callers who hold the scope by a team's role alone, and the handler lists
     * the projects of these roles. A route whose first answer is given again to a repeated request does not declare it,
     * because that happens before its handler: it declares `finds`.
     */
    boundsItself?: true
    /** The rate-limit group; `none` for the service's own pages. */
    limit?: LimitGroup | 'none'
    /**
     * The group of the route's effect, which is expensive. The handler counts the request in it (`countEffect`) when
     * all checks have passed, right before the effect: a request that is refused before does not use it up. The
     * request counts in `limit` too, unless the group is declared to count instead of it (`LIMITS`).
     */
    limitOfEffect?: LimitGroup
    /** Errors of the catalogue that the handler answers, beside those that every route can. */
    errors?: readonly ErrorCode[]
    /**
     * The audit events of a route that changes or reveals something: each good answer leaves one of them, or more.
     * `none` where a POST only reads.
     */
    audit?: EventName | readonly EventName[] | 'none'
    /**
     * Answers in another shape than the rest: that of RFC 6749, or a page. Its plugin documents and sends its errors.
     */
    speaks?: 'oauth' | 'html'
    /** Cache-Control of what the route answers when all is well; without it, `no-store`. */
    cache?: string
    /** Goes on when the organization is suspended, locked or cancelled. */
    whenInactive?: true
    /** Judges by itself whom the organization asks for a second factor: who only leaves is not. */
    asksForSecondFactor?: true
  }
  interface FastifyInstance {
    /** For writes, transactions and whatever may take long. */
    db: Db
    /** For short reads of a single prepared statement; the same database. */
    reads: Db
    /** For transactions that grow with a project: a rotation. */
    lists: Db
    pages: Db
    longTransactions: Db
    databaseKind: Database['kind']
    /** Records what was only read: before the answer is sent. */
    recordRead: RecordRead
    /**
     * Records that a sign-in was refused, for the person and as each of the actors; true when an event is late, as in
     * `recordOfPerson`.
     */
    recordRefused (own: PersonalEvent, actors: readonly Actor[], event: AuditEvent): Promise<boolean>
    keyring: Keyring
    /** What one derivation of a key or a password costs. */
    costs: Costs
    config: Config
    /**
     * The address of this service as everybody else knows it, without a slash at its end: PUBLIC_URL, or where it
     * listens.
     */
    issuer (): string
    /** Mails to people, which no request waits for. */
    outbox: Outbox
    /**
     * Counts the effect of a request in its route's `limitOfEffect`, once; 429 past the limit. Of one that may be
     * repeated, in the transaction of its change: what is answered again, or whose first is under way, does not count.
     */
    countEffect (request: FastifyRequest, reply: FastifyReply): Promise<void>
    /**
     * Counts an attempt at an account that the browser is not known for by its address, whatever the guard counted; 429
     * past the limit.
     */
    countStranger (request: FastifyRequest, reply: FastifyReply): Promise<void>
    /** Re-encrypts histories in the background; `wake` when there is something new to do. */
    histories: { start (): void, wake (): void }
    /** Takes away the rows of what was purged or deleted. */
    removals: { start (): void, wake (): void }
    /** How this service makes invoices. */
    invoicing: {
      seller: Party
      warnOfSeller: () => void
      note: string
      dueDays: number
      paymentDetails: string
      provider: { name: string }
    }
    /** Renews subscriptions and tells the payment provider. */
    billing: { start (): void, wake (): void, stop (): Promise<void> }
    /** Counts the calls of each organization. */
    calls: CallCounter
    /** Numbers events that did not wait for their organization's counter. */
    lateEvents: { start (): void, wake (): void }
    anchors: { start (): void, wake (): void }
  }
  interface FastifyRequest {
    /** Who acts in the organization that the request is about. */
    principal: Principal | null
    /** The user whose access token was sent, on any guarded route. */
    user: UserCall | null
    /** Whether it left events that are not numbered yet. */
    hasLateEvents: boolean
    /** Whether API tokens ended with what it ended, of which some may be left to remove. */
    hasEnded: boolean
    /** Whether its effect is counted. */
    isEffectCounted: boolean
    /** What the caller was let in with by roles of teams; null, where their own role is enough. */
    byTeams: ByTeams | null
    /** Milliseconds that it has waited for the database (`waitFor`). */
    waited: number
    /** When the guard looked, by `performance.now()`. */
    judgedAt: number
  }
}
