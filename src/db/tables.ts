import { getTableColumns, sql } from 'drizzle-orm'
import {
  bigint, boolean, char, check, date, foreignKey, index, integer, jsonb, pgTable, primaryKey, text, unique,
  uniqueIndex, varchar, type AnyPgColumn, type PgTable
} from 'drizzle-orm/pg-core'
import {
  ADDRESS_LENGTH, COUPON_LENGTH, CURRENCY_LENGTH, INTERVALS, INVOICE_STATUSES, LABEL_LENGTH, NOTE_LENGTH,
  PAYMENT_METHOD_KINDS, PAYMENT_STATUSES, TAX_ID_LENGTH, type InvoiceLine, type Party
} from '../../schemas/billing.ts'
import { CREDENTIALS } from '../../schemas/last-change.ts'
import { HISTORY_POLICIES, MANAGED, SECRET_FORMATS } from '../../schemas/projects.ts'
import type { Ability, Scope } from '../../schemas/scopes.ts'
import { LEVELS, type Level } from '../../schemas/secrets.ts'
import { NAME_LENGTH, SLUG_LENGTH } from '../../schemas/shapes.ts'
import { ORGANIZATION_STATUSES } from '../../schemas/organizations.ts'
import type { ExceptStatus } from '../../schemas/teams.ts'
import { MEMBER_STATUSES, ROLES } from '../../schemas/users.ts'
import { VERSION_ACTIONS } from '../../schemas/versions.ts'
import { PRESETS, type Claims, type JwkSet } from '../../schemas/workloads.ts'
import { authenticated, bytea, exempt, hidden, later, moment, presence } from './columns.ts'
import type { EventRow } from './events.ts'

// Column keys are snake_case, so rows need no mapping. Lengths and enums come from schemas/. Foreign keys between
// tables of an organization include `organization_id`, so a row can reference only rows of the same organization.
// Queries of these tables have a condition on `organization_id` (exceptions: test/access/tenants.test.ts).

const ulid = () => char({ length: 26 })
const name = () => varchar({ length: NAME_LENGTH }).notNull()
const slug = () => varchar({ length: SLUG_LENGTH }).notNull()
const count = () => bigint({ mode: 'number' })
/** ISO 4217 code. Amounts in the same row are in minor units of this currency. */
const currency = () => char({ length: CURRENCY_LENGTH }).notNull()
const created = { created_at: moment().notNull().default(sql`now()`) }
const timestamps = { ...created, updated_at: moment().notNull().default(sql`now()`) }

// What an attacker with write access to the database gains by changing a column that the MAC does not cover.
const SHOWN = 'Only shown'
// A list can be sorted by these columns, and filtered by names.
const LISTED = 'Shown; changes the order and the filtered rows of a list'
const BEGAN = 'Whether the level exists at a moment that is read or restored (`at`)'
const PAST = 'Which version a read or restore of a moment uses; each version is sealed for its level'
const lengthOf = (list: string) => `Shown; set lower, the list of ${list} ends earlier`

const exemptCreated = (effect = SHOWN) => ({ created_at: exempt(effect, created.created_at) })
const exemptTimestamps = (effect: string, updated = SHOWN) =>
  ({ ...exemptCreated(effect), updated_at: exempt(updated, timestamps.updated_at) })

/** The tables without a MAC, with what an attacker with write access to the database gains by changing their rows. */
export const UNAUTHENTICATED: Record<string, string> = {}

/** Defines a table without a MAC. `effect`: see `UNAUTHENTICATED`. Sealed and wrapped values are authenticated. */
const unauthenticated = (effect: string) => ((name: string, ...definition: [columns: never]) => {
  UNAUTHENTICATED[name] = effect
  return pgTable(name, ...definition)
}) as unknown as typeof pgTable

export function columnsOf<T extends PgTable, C extends keyof T['_']['columns'] & string> (
  table: T, ...names: C[]
): Pick<T['_']['columns'], C> {
  const columns = getTableColumns(table)
  return Object.fromEntries(names.map((name) => [name, columns[name]])) as unknown as Pick<T['_']['columns'], C>
}

/** Key columns without a foreign key to the organization, because the rows can outlive the organization. */
const ofOrganization = { organization_id: ulid().notNull(), id: ulid().notNull() }
const organizationId = () => ulid().notNull().references(() => organizations.id, { onDelete: 'cascade' })
const userId = () => count().notNull().references(() => users.id, { onDelete: 'cascade' })
const described = { name: exempt(LISTED, name()), slug: slug(), description: exempt(SHOWN, text()) }

/** A foreign key to a row of the same organization. */
const within = <C extends string>(
  name: string, table: Record<'organization_id' | C, AnyPgColumn>, column: C,
  parent: Record<'organization_id' | 'id', AnyPgColumn>
) => foreignKey({
    name, columns: [table.organization_id, table[column]], foreignColumns: [parent.organization_id, parent.id]
  })
const inProject = (name: string, table: Record<'organization_id' | 'project_id', AnyPgColumn>) =>
  within(`${name}_in_project`, table, 'project_id', projects).onDelete('cascade')

/** A migration inserts the plans, and the operator changes them. Null limits mean unlimited. */
export const plans = unauthenticated(
  'Limits for all organizations of a plan: retention, calls a minute, projects, members, bytes'
)('plans', {
  name: varchar({ length: 64 }).primaryKey(),
  retention_days: integer(),
  api_per_minute: integer().notNull(),
  max_projects: integer(),
  max_members: integer(),
  /** Limit for the sum of `size_bytes` over documents and versions. */
  max_bytes: count()
})

/** The price of a plan for one period, in minor units. A plan without a price is free and has no subscriptions. */
export const plan_prices = unauthenticated('Billing: amounts of the next invoices')('plan_prices', {
  plan: varchar({ length: 64 }).notNull().references(() => plans.name, { onDelete: 'cascade' }),
  interval: varchar({ length: 8, enum: INTERVALS }).notNull(),
  currency: currency(),
  amount: count().notNull()
}, (table) => [
  primaryKey({ columns: [table.plan, table.interval, table.currency] }),
  check('plan_prices_amount', sql`${table.amount} > 0`)
])

/** One row for each master key that may wrap values. The service starts only if it can unwrap every canary. */
export const master_key_canaries = unauthenticated(
  'Wrapped by its master key: a changed canary stops the next start'
)('master_key_canaries', {
  key_id: varchar({ length: 32 }).primaryKey(),
  canary: bytea().notNull(),
  ...created
})

export const service_keys = unauthenticated(
  'Wrapped by the master key, and named by canaries: a changed or missing key stops the next start'
)('service_keys', {
  name: varchar({ length: 32 }).primaryKey(),
  wrapped: bytea().notNull(),
  ...created
})

/** The newest complete backup of this database. A restored database has no row before its first backup. */
export const last_backup = unauthenticated(
  'Only shown, in `/metrics`: time and size of the last backup'
)('last_backup', {
  id: integer().primaryKey().default(1),
  made_at: moment().notNull(),
  bytes: count().notNull()
}, (table) => [check('last_backup_one', sql`${table.id} = 1`)])

export const organizations = unauthenticated(
  'Slug: with exchanged slugs, requests by slug go to the other organization if the caller is a member of both. The storage key is wrapped for its organization: another one does not open'
)('organizations', {
  id: ulid().primaryKey(),
  slug: slug().unique(),
  /** The key that seals all documents of the organization. Wrapped by a master key. */
  storage_key: bytea().notNull(),
  ...created
})

export const organizationColumns = columnsOf(organizations, 'id', 'slug', 'storage_key', 'created_at')

/**
 * Every change in an organization locks this row. So version ids and event numbers increase in commit order, and status
 * and plan stay the same until the commit. No foreign key: the row outlives the organization, like its audit events. On
 * Citus, each node has a copy of `organizations`, so the columns that change often are in this table instead.
 */
export const organization_counters = unauthenticated(
  'Name, status, plan, whether members need a second factor, the time of the last change (later changes get that time, if it is at most an hour ahead of the clock), next version id and event number, end of the audit chain (`audit verify` finds a changed one, not a cut-off end), stored bytes, and whether changes are refused'
)('organization_counters', {
  organization_id: ulid().primaryKey(),
  /** Empty after the organization was deleted. */
  name: name(),
  status: varchar({ length: 16, enum: ORGANIZATION_STATUSES }).notNull().default('active'),
  plan: varchar({ length: 64 }).notNull().references(() => plans.name),
  next_version: count().notNull().default(1),
  next_event: count().notNull().default(1),
  /** The time of the last change. The next change gets this time or later, although clocks of database nodes differ. */
  last_at: moment().notNull().default(sql`now()`),
  /** The MAC of the last event. */
  event_head: bytea(),
  /** The id of the chain key for the next event. Null: the first key, which all chains share. */
  chain_kid: ulid(),
  /** The sum of `size_bytes` over documents and versions. */
  stored_bytes: count().notNull().default(0),
  /** True after the organization was deleted: requests can change nothing, but the service can record events. */
  is_closed: boolean().notNull().default(false),
  /** Members need a second factor to act in the organization. */
  require_second_factor: boolean().notNull().default(false),
  /** The last change of the name, slug, status, plan or second-factor requirement. */
  updated_at: moment().notNull().default(sql`now()`)
})

export const counterColumns = columnsOf(
  organization_counters, 'name', 'status', 'require_second_factor', 'updated_at'
)

/**
 * A long operation locks the row of its organization, so that only one long operation runs. No foreign key, so that a
 * deletion of the organization does not wait for the long operation.
 */
export const long_operations = unauthenticated(
  'No effect: a lock, and the time of its last use'
)('long_operations', {
  organization_id: ulid().primaryKey(),
  began_at: moment().notNull().default(sql`now()`)
})

/** Deleted organizations. A background job still has to delete their API tokens, projects and histories. */
export const organization_removals = unauthenticated(
  'An added row makes the service delete the projects and tokens of that organization'
)('organization_removals', {
  organization_id: ulid().primaryKey(),
  removed_at: moment().notNull().default(sql`now()`)
})

/** Slugs that are reserved after a rename or a deletion. A reservation outlives the organization and its owners. */
export const former_slugs = unauthenticated(
  'A removed row, or one with an earlier end, lets another organization take the slug; an added row reserves one'
)('former_slugs', {
  organization_id: ulid().notNull(),
  slug: slug().unique(),
  reserved_until: moment().notNull(),
  /** An owner at the time of the deletion; the reservation counts towards that person's limit of organizations. */
  owner_id: count()
}, (table) => [
  primaryKey({ columns: [table.organization_id, table.slug] }),
  index('former_slugs_by_end').on(table.reserved_until),
  index('former_slugs_by_owner').on(table.owner_id).where(sql`owner_id IS NOT NULL`)
])

export const users = authenticated('users', {
  id: count().primaryKey().generatedAlwaysAsIdentity(),
  email: varchar({ length: 320 }).notNull(),
  /** `canonicalEmail` of `email`, for sign-in. */
  email_normalized: hidden(varchar({ length: 320 }).notNull().unique()),
  name: name(),
  /** Argon2id as a PHC string; null until the user sets the first password through a one-time link. */
  password_hash: hidden(text()),
  is_verified: boolean().notNull().default(false),
  /** If set, the account is closed, and its sessions and tokens are invalid. */
  disabled_at: moment(),
  /** Id in `second_factors`. Stored here, so that deleting that row does not switch the second factor off. */
  second_factor_id: count(),
  ...exemptTimestamps(SHOWN)
})

/** Failed sign-ins of a device, an account in a network, an account, or a session; also for unknown accounts. */
export const sign_in_failures = unauthenticated(
  'Failed sign-ins: set back, more guesses are possible; set higher, people are locked out'
)('sign_in_failures', {
  /** Keyed hash of the counter's name (`lookupHash`). From a plain hash, addresses and networks could be guessed. */
  key: bytea().primaryKey(),
  failures: integer().notNull(),
  /** No sign-in is allowed before this time. */
  locked_until: moment(),
  /** The time of the last attempt; in the counter of an account, the time of the first attempt in the window. */
  last_at: moment().notNull().default(sql`now()`)
}, (table) => [index().on(table.last_at)])

/** Browsers in which a user has signed in before. Failed sign-ins in other browsers do not lock out these browsers. */
export const sign_in_devices = unauthenticated(
  'An added row gives a browser sign-in attempts of its own at an account'
)('sign_in_devices', {
  id: count().primaryKey().generatedAlwaysAsIdentity(),
  token_hash: bytea().notNull(),
  user_id: userId(),
  expires_at: moment().notNull()
}, (table) =>
  [uniqueIndex().on(table.user_id, table.token_hash), index().on(table.token_hash), index().on(table.expires_at)])

/** One-time links for setting a password. */
export const password_links = authenticated('password_links', {
  token_hash: bytea().primaryKey(),
  user_id: userId(),
  expires_at: moment().notNull(),
  ...exemptCreated()
}, (table) => [index().on(table.user_id), index().on(table.expires_at)])

/**
 * Mailed links for resetting a forgotten password. An address without an account gets a row, too, so that the same
 * statements run for every address.
 */
export const password_resets = authenticated('password_resets', {
  /** Keyed hash of the address (`lookupHash`), so that an address has only its newest link. */
  address_hash: bytea().primaryKey(),
  /** Keyed hash of the secret in the link. */
  token_hash: bytea().notNull().unique(),
  /** 0 if the address has no open account: the link then has no effect. No foreign key, because no account has id 0. */
  user_id: count().notNull(),
  expires_at: moment().notNull()
}, (table) => [index().on(table.user_id), index().on(table.expires_at)])

/** Sessions of browsers. Sessions and bearer tokens are not interchangeable. */
export const sessions = authenticated('sessions', {
  token_hash: bytea().primaryKey(),
  user_id: userId(),
  /** The client at sign-in, for the account page: names from `describeUserAgent`, and the truncated address. */
  browser: varchar({ length: 32 }),
  system: varchar({ length: 32 }),
  network: varchar({ length: 64 }),
  seen_at: moment().notNull().default(sql`now()`),
  expires_at: moment().notNull(),
  ...exemptCreated()
}, (table) => [index().on(table.user_id), index().on(table.seen_at), index().on(table.expires_at)])

/** TOTP second factors. A factor takes effect when `users.second_factor_id` is its id. */
export const second_factors = authenticated('second_factors', {
  user_id: count().primaryKey().references(() => users.id, { onDelete: 'cascade' }),
  /** A new id for each setup. */
  id: count().notNull(),
  /** Wrapped by a master key. The encryption context contains the user and this id. */
  secret: exempt(
    'Wrapped by the master key for this account and second factor: another value does not open',
    bytea().notNull()
  ),
  /** The time step of the newest accepted code. Codes of this step and of earlier steps are rejected. */
  last_step: count(),
  ...exemptCreated()
})

/** One-time codes that replace a lost second factor. A used code is deleted. */
export const recovery_codes = authenticated('recovery_codes', {
  user_id: userId(),
  code_hash: bytea().notNull(),
  factor_id: count().notNull(),
  ...exemptCreated()
}, (table) => [primaryKey({ columns: [table.user_id, table.code_hash] })])

/** Sign-ins with a correct password that still need the second factor. They are not sessions and give no access. */
export const sign_in_steps = authenticated('sign_in_steps', {
  token_hash: bytea().primaryKey(),
  user_id: userId(),
  wrong_codes: exempt(
    'Set back, an attacker with the password may try more codes in one sign-in; codes also count by account',
    integer().notNull().default(0)
  ),
  expires_at: moment().notNull(),
  ...exemptCreated()
}, (table) => [index().on(table.user_id), index().on(table.expires_at)])

/** OAuth clients. All are public clients: they have no secret. */
export const oauth_clients = authenticated('oauth_clients', {
  id: varchar({ length: 64 }).primaryKey(),
  name: name(),
  /** Must match exactly, except for the port of a loopback address. A leading `/` means a page of this service. */
  redirect_uris: text().array().notNull(),
  is_first_party: boolean().notNull().default(false),
  disabled_at: moment(),
  ...exemptCreated()
})

/** Authorization requests that wait for the user's decision, bound to the session that displayed the consent page. */
export const oauth_requests = authenticated('oauth_requests', {
  id_hash: bytea().primaryKey(),
  session_hash: bytea().notNull().references(() => sessions.token_hash, { onDelete: 'cascade' }),
  client_id: varchar({ length: 64 }).notNull().references(() => oauth_clients.id, { onDelete: 'cascade' }),
  redirect_uri: text().notNull(),
  state: text(),
  code_challenge: varchar({ length: 43 }).notNull(),
  scopes: text().array().notNull(),
  expires_at: moment().notNull()
}, (table) => [index().on(table.session_hash), index().on(table.client_id), index().on(table.expires_at)])

/** A user's grant to a client. Its codes and tokens are valid only as long as the grant. */
export const oauth_grants = authenticated('oauth_grants', {
  id: count().primaryKey().generatedAlwaysAsIdentity(),
  user_id: userId(),
  client_id: varchar({ length: 64 }).notNull().references(() => oauth_clients.id, { onDelete: 'cascade' }),
  scopes: text().array().notNull(),
  expires_at: moment().notNull(),
  revoked_at: moment(),
  ...exemptCreated()
}, (table) =>
  [index().on(table.user_id), index().on(table.client_id), index().on(table.expires_at), index().on(table.revoked_at)])

/** A code can be redeemed once. Its row stays until the code expires, so that reuse is detected. */
export const oauth_codes = authenticated('oauth_codes', {
  code_hash: bytea().primaryKey(),
  grant_id: count().notNull().references(() => oauth_grants.id, { onDelete: 'cascade' }),
  redirect_uri: text().notNull(),
  code_challenge: varchar({ length: 43 }),
  /** Scopes of the token: a subset of the grant's scopes. Null: all of them. */
  scopes: text().array(),
  wrong_verifiers: exempt(
    'Set back, an attacker with the code may guess more often at the 256 random bits of its verifier',
    integer().notNull().default(0)
  ),
  used_at: moment(),
  expires_at: moment().notNull()
}, (table) => [index().on(table.grant_id), index().on(table.expires_at)])

/** Pairs of an access and a refresh token, which end together. The row of a used token stays, to detect its reuse. */
export const oauth_tokens = authenticated('oauth_tokens', {
  id: count().primaryKey().generatedAlwaysAsIdentity(),
  grant_id: count().notNull().references(() => oauth_grants.id, { onDelete: 'cascade' }),
  access_hash: bytea().notNull().unique(),
  refresh_hash: bytea().notNull().unique(),
  /** Scopes of the access token: a subset of the grant's scopes. */
  scopes: text().array().notNull(),
  access_expires_at: moment().notNull(),
  refresh_expires_at: moment().notNull(),
  used_at: moment(),
  ...exemptCreated()
}, (table) => [index().on(table.grant_id)])

/** Security events for the user. They contain IP address and browser, which organizations must not see. */
export const personal_events = authenticated('personal_events', {
  id: count().primaryKey(),
  user_id: userId(),
  occurred_at: moment().notNull(),
  action: varchar({ length: 64 }).notNull(),
  actor_type: varchar({ length: 16, enum: ['user', 'operator'] }).notNull(),
  ip: varchar({ length: 64 }),
  user_agent: varchar({ length: 256 }),
  details: jsonb().$type<Record<string, string | number | boolean | null>>()
}, (table) => [index().on(table.user_id, table.occurred_at, table.id), index().on(table.occurred_at)])

/** Open invitations. A row does not reveal whether the e-mail address has an account. */
export const invitations = authenticated('invitations', {
  organization_id: organizationId(),
  id: ulid().notNull(),
  /** The address as the inviter typed it. */
  email: varchar({ length: 320 }).notNull(),
  /** `canonicalEmail` of `email`. */
  email_normalized: hidden(varchar({ length: 320 }).notNull()),
  role: varchar({ length: 32, enum: ROLES }).notNull(),
  /** Null: the operator. */
  invited_by_type: varchar({ length: 16, enum: ['user', 'api_token'] }),
  invited_by_id: count(),
  invited_by_name: varchar({ length: NAME_LENGTH }),
  /** SHA-256 of the secret in the last mailed link; null: no mail was sent. */
  token_hash: bytea(),
  expires_at: moment().notNull(),
  ...exemptCreated(),
  /** The level in which the person gets `place_role`, through a team; null: the person gets only `role`. */
  place: hidden(later(jsonb().$type<Omit<StoredSlice, 'except_status'>>())),
  place_role: later(varchar({ length: 32, enum: ROLES }))
}, (table) => [
  primaryKey({ columns: [table.organization_id, table.id] }),
  uniqueIndex('invitations_one_of_address').on(table.organization_id, table.email_normalized),
  uniqueIndex('invitations_by_token').on(table.organization_id, table.token_hash),
  index().on(table.email_normalized), index().on(table.expires_at)
])

/** The last invitation mail to an address. Limits mails to one a day, even if the invitation is created again. */
export const invitation_mails = unauthenticated(
  'A removed or older row allows one more invitation mail to that address on that day'
)('invitation_mails', {
  organization_id: organizationId(),
  email_normalized: varchar({ length: 320 }).notNull(),
  sent_at: moment().notNull().default(sql`now()`)
}, (table) => [primaryKey({ columns: [table.organization_id, table.email_normalized] }), index().on(table.sent_at)])

export const members = authenticated('members', {
  organization_id: organizationId(),
  user_id: userId(),
  role: varchar({ length: 32, enum: ROLES }).notNull(),
  status: varchar({ length: 16, enum: MEMBER_STATUSES }).notNull().default('active'),
  joined_at: exempt(LISTED, moment().notNull().default(sql`now()`))
}, (table) => [primaryKey({ columns: [table.organization_id, table.user_id] }), index().on(table.user_id)])

/** No foreign key to the organization: after its deletion, a job deletes the tokens (`organization_removals`). */
export const api_tokens = authenticated('api_tokens', {
  id: count().notNull().generatedAlwaysAsIdentity(),
  organization_id: hidden(ulid().notNull()),
  name: name(),
  description: exempt(SHOWN, text()),
  /** SHA-256 of the token. The token itself is not stored. */
  token_hash: bytea().notNull(),
  token_prefix: varchar({ length: 12 }).notNull(),
  token_suffix: varchar({ length: 4 }).notNull(),
  abilities: text().array().$type<Ability[]>().notNull(),
  /** The levels to which the token is restricted. Ids, because slugs can change. Null: the whole organization. */
  slices: jsonb().$type<Omit<StoredSlice, 'except_status'>[]>(),
  expires_at: moment(),
  last_used_at: exempt(SHOWN, moment()),
  /** The creator, with the name at that time; null: an operator. */
  created_by_type: varchar({ length: 16, enum: ['user', 'api_token'] }),
  created_by_id: count(),
  created_by_name: varchar({ length: NAME_LENGTH }),
  /** The person and the grant behind the token, even if another token created it. If either ends, the token ends. */
  user_id: hidden(count().references(() => users.id, { onDelete: 'cascade' })),
  grant_id: hidden(count().references(() => oauth_grants.id, { onDelete: 'cascade' })),
  ...exemptTimestamps(LISTED),
  /** The `expires_at` of which the owners were told by mail; null: of none. */
  announced_end: hidden(exempt('Whether the owners get a mail before the token expires', moment()))
}, (table) => [
  primaryKey({ columns: [table.organization_id, table.id] }), unique().on(table.organization_id, table.token_hash),
  index('api_tokens_by_id').on(table.id), index().on(table.user_id), index().on(table.grant_id),
  index('api_tokens_by_expiry').on(table.expires_at)
])

/** The previous value of a rotated token, valid for the overlap period. */
export const former_token_hashes = authenticated('former_token_hashes', {
  organization_id: ulid().notNull(),
  token_id: count().notNull(),
  token_hash: bytea().notNull(),
  expires_at: moment().notNull()
}, (table) => [
  primaryKey({ columns: [table.organization_id, table.token_id] }),
  unique().on(table.organization_id, table.token_hash),
  within('former_token_hashes_of_token', table, 'token_id', api_tokens).onDelete('cascade')
])

/** API tokens become invalid if their membership or grant ends, or if all levels of their restriction are deleted. */
export const ENDINGS = ['member', 'grant', 'level'] as const

/**
 * Work list of invalid API tokens, which a background job deletes. `ended_id` is the id of the user or of the grant, or
 * 0 for deleted levels. No foreign key, so that closing an account does not lock the organization (0037).
 */
export const token_removals = unauthenticated(
  'An added row makes the service delete the tokens of a member or a grant'
)('token_removals', {
  organization_id: ulid().notNull(),
  ended: varchar({ length: 16, enum: ENDINGS }).notNull(),
  ended_id: count().notNull()
}, (table) => [primaryKey({ columns: [table.organization_id, table.ended, table.ended_id] })])

/** Trust rules: which tokens of a platform are exchanged for access tokens, and what these may do. */
export const workload_rules = authenticated('workload_rules', {
  organization_id: hidden(organizationId()),
  /** Made by `makeId`, so that a token of a deleted rule never fits a later rule. */
  id: count().notNull(),
  name: name(),
  description: exempt(SHOWN, text()),
  enabled: boolean().notNull(),
  preset: varchar({ length: 32, enum: PRESETS }),
  issuer: text().notNull(),
  /** The keys of the issuer; null: the issuer publishes them. */
  jwks: jsonb().$type<JwkSet>(),
  audience: text().notNull(),
  claims: jsonb().$type<Claims>().notNull(),
  scopes: text().array().$type<Scope[]>().notNull(),
  /** As in `api_tokens`. */
  slices: hidden(jsonb().$type<Omit<StoredSlice, 'except_status'>[]>()),
  lifetime: integer().notNull(),
  single_use: boolean().notNull(),
  max_assertion_age: integer().notNull(),
  /** A new number of `makeId` with each change but of name and description, which ends the tokens of the rule. */
  revision: hidden(count().notNull()),
  /** The creator, with the name at that time; null: an operator. */
  created_by_type: varchar({ length: 16, enum: ['user', 'api_token'] }),
  created_by_id: count(),
  created_by_name: varchar({ length: NAME_LENGTH }),
  /** The person who created the rule, also through a token. */
  user_id: hidden(count()),
  ...exemptTimestamps(LISTED)
}, (table) => [primaryKey({ columns: [table.organization_id, table.id] })])

/**
 * Assertions that were exchanged by a rule with `single_use`. No foreign keys: the rows are deleted when the assertions
 * have expired.
 */
export const spent_assertions = unauthenticated(
  'A removed row lets a token of a platform be exchanged again until it expires; an added row refuses one'
)('spent_assertions', {
  organization_id: ulid().notNull(),
  rule_id: count().notNull(),
  /** SHA-256, in hexadecimal, of the id of the assertion, or of the assertion without its signature. */
  spend: char({ length: 64 }).notNull(),
  expires_at: moment().notNull()
}, (table) => [
  primaryKey({ columns: [table.organization_id, table.rule_id, table.spend] }), index().on(table.expires_at)
])

/** When an organization was restored from a backup, which has no used assertions. */
export const organization_restores = unauthenticated(
  'A removed row, or one with an earlier time, lets tokens of platforms that were used before the restore be exchanged again until they expire'
)('organization_restores', {
  organization_id: ulid().primaryKey().references(() => organizations.id, { onDelete: 'cascade' }),
  restored_at: moment().notNull()
})

/** No foreign key to the organization, because the organization is deleted first (`organization_removals`). */
export const projects = authenticated('projects', {
  id: hidden(ulid().notNull()),
  organization_id: ulid().notNull(),
  ...described,
  secret_format: varchar({ length: 8, enum: SECRET_FORMATS }).notNull(),
  encryption_type: varchar({ length: 8, enum: MANAGED }).notNull(),
  history_policy: varchar({ length: 16, enum: HISTORY_POLICIES }).notNull(),
  /** The version of the active key, which encrypts every current document of the project. */
  key_version: hidden(integer().notNull()),
  ...exemptTimestamps(BEGAN)
}, (table) => [
  primaryKey({ columns: [table.organization_id, table.id] }),
  uniqueIndex('projects_slug_taken').on(table.organization_id, table.slug)
])

/**
 * Numbers of objects in a project, and its newest version. The statements that add or remove objects update the row.
 * These columns are not in `projects`, because a write of a document locks the row in `projects` only in share mode, so
 * it cannot update that row.
 */
export const project_counts = unauthenticated(
  'Shown; set lower, the list of targets ends earlier; with another newest version, the list of projects shows the time and author of another change in the organization'
)('project_counts', {
  organization_id: ulid().notNull(),
  project_id: ulid().notNull(),
  target_count: integer().notNull().default(0),
  environment_count: integer().notNull().default(0),
  /** Current documents at all levels of the project. */
  secret_count: integer().notNull().default(0),
  /** The newest version of all levels that was not deleted (`renewLastVersion`); null without versions. */
  last_version: count()
}, (table) => [primaryKey({ columns: [table.organization_id, table.project_id] }), inProject('project_counts', table)])

/** Groups of members with roles in projects. */
export const teams = authenticated('teams', {
  id: ulid().notNull(),
  organization_id: hidden(organizationId()),
  ...described,
  ...exemptTimestamps(LISTED),
  /** True for a team that an invitation to a level made: further invitations to this level use it. */
  is_of_place: hidden(later(boolean()))
}, (table) => [
  primaryKey({ columns: [table.organization_id, table.id] }),
  uniqueIndex('teams_slug_taken').on(table.organization_id, table.slug)
])

/** The members of a team. A row is deleted with the membership in the organization. */
export const team_members = authenticated('team_members', {
  organization_id: ulid().notNull(),
  team_id: ulid().notNull(),
  user_id: count().notNull(),
  ...exemptCreated()
}, (table) => [
  primaryKey({ columns: [table.organization_id, table.team_id, table.user_id] }),
  within('team_members_in_team', table, 'team_id', teams).onDelete('cascade'),
  within(
    'team_members_are_members', table, 'user_id', { organization_id: members.organization_id, id: members.user_id }
  ).onDelete('cascade'),
  index().on(table.organization_id, table.user_id)
])

/** A restriction (`Slice` in src/rules/slices.ts). */
export interface StoredSlice {
  project_id: string
  target_id: string | null
  environment_id: string | null
  except_status?: ExceptStatus
  inherited?: true
}

/** The projects of a team, and the role of its members in each project. */
export const team_projects = authenticated('team_projects', {
  organization_id: ulid().notNull(),
  team_id: ulid().notNull(),
  project_id: ulid().notNull(),
  role: varchar({ length: 32, enum: ROLES }).notNull(),
  /** The parts of the project to which the role is restricted; null for the whole project. */
  slices: jsonb().$type<StoredSlice[]>(),
  ...exemptCreated()
}, (table) => [
  primaryKey({ columns: [table.organization_id, table.team_id, table.project_id] }),
  within('team_projects_in_team', table, 'team_id', teams).onDelete('cascade'),
  inProject('team_projects', table),
  index().on(table.organization_id, table.project_id),
  index().on(table.organization_id, table.team_id, table.role)
])

/** The active and former keys of projects. Columns that could help to guess a key are wrapped by a master key. */
export const encryption_keys = unauthenticated(
  'Key strings, data keys, salts and key checks are wrapped for their project, version and column: another value does not open. Custody, iterations, active version, hint, id, times and the hash of the key check are not wrapped: with another custody, version or iteration count documents do not open, or writes are refused'
)('encryption_keys', {
  id: count().notNull().generatedAlwaysAsIdentity(),
  organization_id: ulid().notNull(),
  project_id: ulid().notNull(),
  version: integer().notNull(),
  managed: varchar({ length: 8, enum: MANAGED }).notNull(),
  /** Server-managed keys: the wrapped key string. Null after `forgetRotatedKeys` has deleted the key material. */
  key_string: bytea(),
  /** Server-managed keys: the wrapped data key, derived from the key string. Stored, so that reads need no PBKDF2. */
  data_key: bytea(),
  /** Client-managed keys: the wrapped key proof, for comparison. */
  key_check: bytea(),
  /** Keyed hash of the key proof, to find the key of a given proof. */
  key_check_hash: bytea(),
  /** Wrapped. */
  salt: bytea().notNull(),
  iterations: integer().notNull(),
  hint: varchar({ length: 255 }),
  is_active: boolean().notNull(),
  ...created,
  rotated_at: moment()
}, (table) => [
  primaryKey({ columns: [table.organization_id, table.id] }),
  // For `rewrap`, which walks through the keys of all organizations.
  index('encryption_keys_by_id').on(table.id),
  inProject('encryption_keys', table),
  uniqueIndex().on(table.organization_id, table.project_id, table.version),
  uniqueIndex('encryption_keys_one_active').on(table.organization_id, table.project_id).where(sql`${table.is_active}`),
  uniqueIndex('encryption_keys_by_check').on(
    table.organization_id, table.project_id, table.key_check_hash
  ).where(sql`${table.key_check} is not null`),
  check('encryption_keys_check_hash', sql`(${table.key_check_hash} is null) = (${table.key_check} is null)`),
  // Finds the last client-managed key without reading later keys.
  index('encryption_keys_of_clients').on(
    table.organization_id, table.project_id, table.version
  ).where(sql`${table.managed} = 'client'`),
  check('encryption_keys_custody', sql`CASE WHEN ${table.managed} = 'client' THEN ${table.key_string} is null AND ${table.data_key} is null AND ${table.key_check} is not null
    ELSE ${table.key_check} is null AND (${table.key_string} is null) = (${table.data_key} is null) AND (${table.key_string} is not null OR NOT ${table.is_active}) END`)
])

/** The progress of re-encrypting a project's history under the active key, to continue after a restart. */
export const re_encryptions = unauthenticated(
  'Shown progress of a re-encryption; marked as finished, the rest of the history is not re-encrypted'
)('re_encryptions', {
  organization_id: ulid().notNull(),
  project_id: ulid().notNull(),
  /** Versions to re-encrypt, and versions re-encrypted so far. */
  total: integer().notNull(),
  moved: integer().notNull().default(0),
  started_at: moment().notNull().default(sql`now()`),
  finished_at: moment(),
  /** Versions that were not re-encrypted, because they cannot be decrypted. */
  unreadable: integer().notNull().default(0)
}, (table) => [
  primaryKey({ columns: [table.organization_id, table.project_id] }), inProject('re_encryptions', table),
  index('re_encryptions_under_way').on(table.organization_id, table.project_id).where(sql`${table.finished_at} is null`)
])

export const keyColumns = columnsOf(
  encryption_keys, 'id', 'organization_id', 'project_id', 'version', 'managed', 'key_string', 'data_key', 'key_check',
  'salt', 'iterations', 'is_active', 'created_at', 'rotated_at'
)

export const targets = authenticated('targets', {
  id: ulid().notNull(),
  organization_id: hidden(ulid().notNull()),
  project_id: ulid().notNull(),
  ...described,
  /** As in `project_counts`. */
  environment_count: exempt(lengthOf('environments'), integer().notNull().default(0)),
  secret_count: exempt(SHOWN, integer().notNull().default(0)),
  ...exemptTimestamps(BEGAN)
}, (table) => [
  primaryKey({ columns: [table.organization_id, table.id] }),
  inProject('targets', table),
  uniqueIndex('targets_slug_taken').on(table.organization_id, table.project_id, table.slug)
])

export const environments = authenticated('environments', {
  id: ulid().notNull(),
  organization_id: hidden(ulid().notNull()),
  project_id: ulid().notNull(),
  target_id: ulid().notNull(),
  ...described,
  status: varchar({ length: SLUG_LENGTH }).notNull(),
  is_production: boolean().notNull(),
  ...exemptTimestamps(BEGAN)
}, (table) => [
  primaryKey({ columns: [table.organization_id, table.id] }),
  inProject('environments', table),
  within('environments_in_target', table, 'target_id', targets).onDelete('cascade'),
  uniqueIndex('environments_slug_taken').on(table.organization_id, table.target_id, table.slug),
  index().on(table.organization_id, table.project_id)
])

/**
 * The parent of a secret's versions. A purge gives the secret a new history. Versions of a removed history are
 * inaccessible at once; a background job deletes them.
 */
export const histories = unauthenticated(
  'A history that is marked as removed loses its versions'
)('histories', {
  ...ofOrganization,
  /** If set, no secret references this history any more. */
  removed_at: moment()
}, (table) => [
  primaryKey({ columns: [table.organization_id, table.id] }),
  index('histories_removed').on(table.organization_id, table.id).where(sql`${table.removed_at} is not null`)
])

/** The encrypted document of a level. A delete clears the content; the row is deleted with the level (0045). */
export const secrets = authenticated('secrets', {
  id: ulid().notNull(),
  organization_id: ulid().notNull(),
  project_id: ulid().notNull(),
  target_id: ulid(),
  environment_id: ulid(),
  level: varchar({ length: 16, enum: LEVELS }).notNull(),
  /** Id of the project, target or environment. Each of these levels has at most one secret. */
  level_id: ulid().notNull(),
  /** Incremented by every write of the level. Part of the encryption context and of the ETag. */
  revision: count().notNull(),
  key_version: integer().notNull(),
  /** The encrypted document, sealed with the organization's storage key; null after a delete. */
  sealed: presence(bytea()),
  size_bytes: integer().notNull(),
  /** The version that the last write created; null if the write had `no_backup` or the version was deleted. */
  version: exempt(SHOWN, count()),
  history_id: exempt(
    'Which versions the document has: another history hides them, or shows purged ones that are not deleted yet; no version opens at another level',
    ulid().notNull()
  ),
  /** The number of versions in the history, and the sum of their `size_bytes`. */
  version_count: exempt(lengthOf('versions'), integer().notNull().default(0)),
  version_bytes: exempt(
    'The bytes that a purge or delete subtracts: set lower, the plan is full sooner; set higher, later',
    count().notNull().default(0)
  ),
  ...exemptTimestamps(PAST, PAST)
}, (table) => [
  primaryKey({ columns: [table.organization_id, table.id] }),
  inProject('secrets', table),
  within('secrets_in_target', table, 'target_id', targets).onDelete('cascade'),
  within('secrets_in_environment', table, 'environment_id', environments).onDelete('cascade'),
  within('secrets_in_history', table, 'history_id', histories),
  uniqueIndex('secrets_one_of_level').on(table.organization_id, table.level_id),
  uniqueIndex('secrets_one_of_history').on(table.organization_id, table.history_id),
  index().on(table.organization_id, table.project_id, table.id),
  index().on(table.organization_id, table.target_id),
  index().on(table.organization_id, table.environment_id)
])

/** Snapshots of documents, numbered per organization in commit order. Only a re-encryption changes a row. */
export const secret_versions = unauthenticated(
  'Content is sealed for its level, number, revision and key: another value does not open. Action, author, what the author used, date, `size_bytes` and the restored version are not: another date moves a version into or out of the retention window and to another moment; another size changes the bytes that a delete subtracts'
)('secret_versions', {
  organization_id: ulid().notNull(),
  id: count().notNull(),
  history_id: ulid().notNull(),
  action: varchar({ length: 16, enum: VERSION_ACTIONS }).notNull(),
  /** The secret's revision after this write. If the row in `secrets` has a lower revision, that row was rolled back. */
  revision: count().notNull(),
  key_version: integer().notNull(),
  sealed: bytea().notNull(),
  size_bytes: integer().notNull(),
  restored_from: count(),
  created_by_id: count(),
  created_by_name: varchar({ length: NAME_LENGTH }),
  ...created,
  /** What the author used; null for an operator, and in rows of release 0.1.0. */
  created_through: varchar({ length: 16, enum: CREDENTIALS }),
  /** The name of the application at that time, if the author used one. */
  application_name: varchar({ length: NAME_LENGTH })
}, (table) => [
  primaryKey({ columns: [table.organization_id, table.id] }),
  within('secret_versions_in_history', table, 'history_id', histories).onDelete('cascade'),
  // For index-only scans: a page of a history, and the versions under an older key.
  index('secret_versions_of_history').on(table.organization_id, table.history_id, table.id),
  index('secret_versions_by_key').on(
    table.organization_id, table.history_id, table.key_version, table.id, table.created_at
  )
])

/** Committed changes, and reads that reveal a secret. Rows never contain a value, key, proof, salt or token. */
export const audit_events = unauthenticated(
  'Each event carries a MAC over itself and the previous one. The API lists events without a check; `audit verify` finds changed, added and removed events, but not a cut-off end'
)('audit_events', {
  organization_id: ulid().notNull(),
  seq: count().notNull(),
  occurred_at: moment().notNull().default(sql`now()`),
  action: varchar({ length: 64 }).notNull(),
  actor_type: varchar({ length: 16 }).notNull(),
  actor_id: count(),
  resource_type: varchar({ length: 32 }).notNull(),
  resource_id: varchar({ length: 64 }),
  request_id: varchar({ length: 64 }),
  ip: varchar({ length: 64 }),
  user_agent: varchar({ length: 256 }),
  details: jsonb().$type<Record<string, string | number | boolean | null>>(),
  /** The id of the chain key that made the MAC. */
  chain_kid: varchar({ length: 32 }).notNull(),
  /** MAC over all columns above and the MAC of the previous event. */
  mac: bytea().notNull()
}, (table) => {
  const { organization_id, seq, occurred_at, action, actor_type, actor_id, resource_type, resource_id, details } = table
  // A query with filters reads ranges of one of these indexes, newest first. Without a filter for the action, the query
  // reads one range for each action (`src/repositories/audit/events.ts`, decision 0057).
  const newest = [action, occurred_at, seq] as const
  // The events of a level. The actor comes last, to test it without a look at the event.
  const ofLevel = (level: Level) => index(`audit_events_by_${level}`)
    .on(organization_id, sql`(${details} ->> ${sql.raw(`'${level}_id'`)})`, ...newest, actor_type, actor_id)
    .where(sql`(${details} ->> ${sql.raw(`'${level}_id'`)}) is not null`)
  return [
    primaryKey({ columns: [organization_id, seq] }),
    check('audit_events_numbers', sql`${seq} > 0`),
    index('audit_events_by_time').on(organization_id, occurred_at, seq),
    index('audit_events_by_action').on(organization_id, ...newest),
    index('audit_events_by_actor').on(organization_id, actor_type, actor_id, ...newest),
    index('audit_events_by_resource').on(organization_id, resource_type, resource_id, ...newest),
    index('audit_events_by_resource_and_actor')
      .on(organization_id, resource_type, resource_id, actor_type, actor_id, ...newest),
    ...LEVELS.map(ofLevel)
  ]
})

/**
 * Events of users that are not in the organization's audit chain yet, because its row in `organization_counters` was
 * locked or its chain key was missing. No foreign key, so that an insert does not wait for changes of the organization.
 */
export const late_events = authenticated('late_events', {
  organization_id: ulid().notNull(),
  id: count().notNull().generatedAlwaysAsIdentity(),
  occurred_at: moment().notNull().default(sql`now()`),
  event: jsonb().$type<EventRow>().notNull()
}, (table) => [primaryKey({ columns: [table.organization_id, table.id] })])

/**
 * The keys of audit chains, except for the first key, which all chains share. Each key is wrapped by a master key, in a
 * context with its organization, id and `from_seq`. Like the events, the keys outlive the organization.
 */
export const chain_keys = unauthenticated(
  'Wrapped for organization, name and first event: with a changed or missing key, changes in that organization are refused'
)('chain_keys', {
  organization_id: ulid().notNull(),
  kid: ulid().notNull(),
  /** The number of the first event under this key. The event before is `chain-key.rotate`. */
  from_seq: count().notNull(),
  wrapped: bytea().notNull(),
  ...created
}, (table) => [
  primaryKey({ columns: [table.organization_id, table.kid] }),
  uniqueIndex('chain_keys_in_order').on(table.organization_id, table.from_seq)
])

/** A discount for subscription invoices: a percentage or an amount. */
export const coupons = unauthenticated('Billing: discounts, and how often each can be redeemed')('coupons', {
  code: varchar({ length: COUPON_LENGTH }).primaryKey(),
  percent_off: integer(),
  amount_off: count(),
  currency: char({ length: CURRENCY_LENGTH }),
  valid_until: moment(),
  max_redemptions: integer(),
  /** Updated by the statement that redeems the coupon. */
  redemptions: integer().notNull().default(0),
  ...created
}, (table) => [
  check('coupons_off', sql`CASE WHEN ${table.percent_off} is null THEN ${table.amount_off} > 0 AND ${table.currency} is not null
    ELSE ${table.percent_off} BETWEEN 1 AND 100 AND ${table.amount_off} is null AND ${table.currency} is null END`)
])

/** The buyer on an organization's invoices, and the next invoice number. Billing changes lock this row first. */
export const billing_accounts = unauthenticated(
  'Billing: buyer, next invoice number, and coupon'
)('billing_accounts', {
  organization_id: ulid().primaryKey().references(() => organizations.id, { onDelete: 'cascade' }),
  name: varchar({ length: NAME_LENGTH }).notNull().default(''),
  address: varchar({ length: ADDRESS_LENGTH }).notNull().default(''),
  tax_id: varchar({ length: TAX_ID_LENGTH }).notNull().default(''),
  next_invoice: integer().notNull().default(1),
  coupon: varchar({ length: COUPON_LENGTH }).references(() => coupons.code),
  ...timestamps
})

/** The credit balance of an organization by currency, which reduces the next invoices. */
export const credits = unauthenticated('Billing: reductions of the next invoices')('credits', {
  organization_id: organizationId(),
  currency: currency(),
  amount: count().notNull()
}, (table) => [
  primaryKey({ columns: [table.organization_id, table.currency] }),
  check('credits_amount', sql`${table.amount} >= 0`)
])

/** Redeemed coupons. An organization can redeem a coupon once, even if it removes the coupon later. */
export const coupon_redemptions = unauthenticated(
  'Billing: without its row, an organization redeems a coupon again'
)('coupon_redemptions', {
  organization_id: organizationId(),
  coupon: varchar({ length: COUPON_LENGTH }).notNull().references(() => coupons.code),
  ...created
}, (table) => [primaryKey({ columns: [table.organization_id, table.coupon] })])

/** The paid plan of an organization. The row is deleted after the last period. */
export const subscriptions = unauthenticated('Billing: plan, price, period and end')('subscriptions', {
  organization_id: ulid().primaryKey().references(() => organizations.id, { onDelete: 'cascade' }),
  id: ulid().notNull(),
  plan: varchar({ length: 64 }).notNull().references(() => plans.name),
  interval: varchar({ length: 8, enum: INTERVALS }).notNull(),
  currency: currency(),
  /** The price of one period. */
  amount: count().notNull(),
  /** Start of the first period. Each period is computed from here, so a short month does not shift later periods. */
  anchor: moment().notNull(),
  /** Completed periods since the anchor. */
  periods: integer().notNull().default(0),
  period_start: moment().notNull(),
  period_end: moment().notNull(),
  /** The invoice of the current period. A change of plan turns the unused part of its payment into credit. */
  invoice_id: ulid().notNull(),
  cancel_at_period_end: boolean().notNull().default(false),
  ...timestamps
}, (table) => [
  index().on(table.period_end), within('subscriptions_on_invoice', table, 'invoice_id', invoices)
])

/** Payment methods of an organization. Numbers of cards and accounts are never stored. */
export const payment_methods = unauthenticated(
  'Billing: labels, references and the default'
)('payment_methods', {
  organization_id: organizationId(),
  id: ulid().notNull(),
  kind: varchar({ length: 16, enum: PAYMENT_METHOD_KINDS }).notNull(),
  label: varchar({ length: LABEL_LENGTH }).notNull(),
  reference: varchar({ length: LABEL_LENGTH }),
  is_default: boolean().notNull(),
  ...created
}, (table) => [
  primaryKey({ columns: [table.organization_id, table.id] }),
  uniqueIndex('payment_methods_one_default').on(table.organization_id).where(sql`${table.is_default}`)
])

// Invoices, charges and refunds outlive the organization, for the operator's accounting.

/** Invoices, numbered per organization without gaps. Only `status`, `paid_at` and `unused` change later. */
export const invoices = unauthenticated('Billing: amounts, parties, numbers and status')('invoices', {
  ...ofOrganization,
  number: integer().notNull(),
  status: varchar({ length: 8, enum: INVOICE_STATUSES }).notNull(),
  currency: currency(),
  lines: jsonb().$type<InvoiceLine[]>().notNull(),
  /** The sum of the lines, the deductions by coupon and credit, and the amount to pay. */
  subtotal: count().notNull(),
  discount: count().notNull(),
  credit: count().notNull(),
  total: count().notNull(),
  /** After a change of plan: the amount of the unused part of the period, credited when the invoice is paid. */
  unused: count().notNull().default(0),
  /** Seller and buyer as they were when the invoice was created. */
  seller: jsonb().$type<Party>().notNull(),
  buyer: jsonb().$type<Party>().notNull(),
  /** The buyer's reference and the operator's note, as they were when the invoice was created. */
  reference: varchar({ length: LABEL_LENGTH }),
  note: varchar({ length: NOTE_LENGTH }).notNull().default(''),
  issued_at: moment().notNull().default(sql`now()`),
  due_at: moment().notNull(),
  paid_at: moment()
}, (table) => [
  primaryKey({ columns: [table.organization_id, table.id] }),
  uniqueIndex('invoices_number_taken').on(table.organization_id, table.number),
  check('invoices_total', sql`${table.total} >= 0 AND ${table.subtotal} = ${table.discount} + ${table.credit} + ${table.total}`),
  check('invoices_unused', sql`${table.unused} BETWEEN 0 AND ${table.credit} + ${table.total}`)
])

/**
 * The columns of an order to a payment provider. The row is inserted before the provider is called, and updated with
 * the response. While `submitted_at` is null, the order must be sent. If `asked_at` is set then, an earlier call may
 * have reached the provider.
 */
const order = {
  ...ofOrganization,
  provider: varchar({ length: 32 }).notNull(),
  provider_reference: varchar({ length: LABEL_LENGTH }),
  /** The status reported by the provider; it may differ from `noted_status`. Null before the first response. */
  provider_status: varchar({ length: 16, enum: PAYMENT_STATUSES }),
  /** The status noted by the operator. If the provider reports another status, a payment was possibly made twice. */
  noted_status: varchar({ length: 16, enum: PAYMENT_STATUSES }),
  status: varchar({ length: 16, enum: PAYMENT_STATUSES }).notNull().default('pending'),
  amount: count().notNull(),
  /** Time of the last call to the provider, set before each call. */
  asked_at: moment(),
  /** Time of the provider's response, or of a note that made the call unnecessary. */
  submitted_at: moment(),
  settled_at: moment(),
  ...created
}

export const charges = unauthenticated(
  'Billing: amounts and status; one marked as not submitted is sent to the provider again'
)('charges', {
  ...order,
  invoice_id: ulid().notNull(),
  payment_method_id: ulid(),
  currency: currency(),
  /** The sum of refunds that did not fail. */
  refunded: count().notNull().default(0)
}, (table) => [
  primaryKey({ columns: [table.organization_id, table.id] }),
  within('charges_of_invoice', table, 'invoice_id', invoices),
  index('charges_by_invoice').on(table.organization_id, table.invoice_id),
  index('charges_to_submit').on(table.provider, table.asked_at.asc().nullsFirst(), table.id)
    .where(sql`${table.submitted_at} is null`),
  check('charges_refunded', sql`${table.amount} > 0 AND ${table.refunded} BETWEEN 0 AND ${table.amount}`)
])

/** A refund of a charge, by the provider of that charge. */
export const refunds = unauthenticated(
  'Billing: amounts and status; one marked as not submitted is sent to the provider again'
)('refunds', {
  ...order,
  charge_id: ulid().notNull(),
  /** When the operator compared the noted and the reported status. Null again after a change of the reported status. */
  checked_at: moment(),
  reason: varchar({ length: LABEL_LENGTH })
}, (table) => [
  primaryKey({ columns: [table.organization_id, table.id] }),
  within('refunds_of_charge', table, 'charge_id', charges),
  index('refunds_by_charge').on(table.organization_id, table.charge_id),
  index('refunds_to_submit').on(table.provider, table.asked_at.asc().nullsFirst(), table.id)
    .where(sql`${table.submitted_at} is null`),
  check('refunds_amount', sql`${table.amount} > 0`)
])

/** API calls per organization and day (UTC), for the last 31 days. */
export const api_usage = unauthenticated('Billing: calls of a day, only shown')('api_usage', {
  organization_id: organizationId(),
  day: date({ mode: 'string' }).notNull(),
  calls: count().notNull()
}, (table) => [primaryKey({ columns: [table.organization_id, table.day] })])

/** The first response to an idempotent request, for replay. */
export const idempotency_keys = unauthenticated(
  'The response is sealed for caller, key, request and status: a changed row is not found, or refused. A removed or older row lets a repeat take effect again; a newer one is returned for longer than 24 hours'
)('idempotency_keys', {
  organization_id: organizationId(),
  /** The sender, such as `user:17`. */
  principal: varchar({ length: 32 }).notNull(),
  /** Keyed hash of the header, in hexadecimal, bound to organization and principal (`lookupHash`). */
  key: varchar({ length: 255 }).notNull(),
  /** Keyed hash of the header, method, path and body, bound to organization and principal (`lookupHash`). */
  request: bytea().notNull(),
  status: integer().notNull(),
  /** Sealed under the organization's storage key, in base64. */
  answer: jsonb().$type<{ sealed: string }>().notNull(),
  ...created
}, (table) => [
  primaryKey({ columns: [table.organization_id, table.principal, table.key] }),
  // Finds expired responses without a full scan.
  index().on(table.created_at)
])
