import { sql } from 'drizzle-orm'
import {
  bigint, boolean, char, check, date, foreignKey, index, integer, jsonb, pgTable, primaryKey, text, unique,
  uniqueIndex, varchar, type AnyPgColumn
} from 'drizzle-orm/pg-core'
import {
  ADDRESS_LENGTH, COUPON_LENGTH, CURRENCY_LENGTH, INTERVALS, INVOICE_STATUSES, LABEL_LENGTH, NOTE_LENGTH,
  PAYMENT_METHOD_KINDS, PAYMENT_STATUSES, TAX_ID_LENGTH, type InvoiceLine, type Party
} from '../../schemas/billing.ts'
import { HISTORY_POLICIES, MANAGED, SECRET_FORMATS } from '../../schemas/projects.ts'
import type { Ability } from '../../schemas/scopes.ts'
import { LEVELS } from '../../schemas/secrets.ts'
import { NAME_LENGTH, SLUG_LENGTH } from '../../schemas/shapes.ts'
import { ORGANIZATION_STATUSES } from '../../schemas/organizations.ts'
import { MEMBER_STATUSES, ROLES } from '../../schemas/users.ts'
import { VERSION_ACTIONS } from '../../schemas/versions.ts'
import { bytea, moment } from './columns.ts'
import type { EventRow } from './events.ts'

// The whole database on one page. Column keys are snake_case, so a row needs no mapping. Lengths and word lists come
// from schemas/. Whatever belongs to an organization has its id in the key, and in each reference to its kind: a row
// can only point at one of the same organization. Every query names the organization too (test/tenants.test.ts).

const ulid = () => char({ length: 26 })
const name = () => varchar({ length: NAME_LENGTH }).notNull()
const slug = () => varchar({ length: SLUG_LENGTH }).notNull()
const count = () => bigint({ mode: 'number' })
/** ISO 4217. What stands beside it is in minor units of it. */
const currency = () => char({ length: CURRENCY_LENGTH }).notNull()
const created = { created_at: moment().notNull().default(sql`now()`) }
const timestamps = { ...created, updated_at: moment().notNull().default(sql`now()`) }
/** Over the fields that authenticated.ts names; null once the row has ended, and then nothing revives it. */
const authenticated = { mac: bytea() }

/** Plans are rows, seeded by a migration and changed by the operator; null is without limit. */
export const plans = pgTable('plans', {
  name: varchar({ length: 64 }).primaryKey(),
  retention_days: integer(),
  api_per_minute: integer().notNull(),
  max_projects: integer(),
  max_members: integer(),
  /** Of documents and versions together, as `size_bytes` counts them. */
  max_bytes: count()
})

/** What a plan costs for one period, in minor units; a plan without a price is free, and nobody subscribes to it. */
export const plan_prices = pgTable('plan_prices', {
  plan: varchar({ length: 64 }).notNull().references(() => plans.name, { onDelete: 'cascade' }),
  interval: varchar({ length: 8, enum: INTERVALS }).notNull(),
  currency: currency(),
  amount: count().notNull()
}, (table) => [
  primaryKey({ columns: [table.plan, table.interval, table.currency] }),
  check('plan_prices_amount', sql`${table.amount} > 0`)
])

/** One row for each master key that ever wrapped something: it must open before the service serves. */
export const master_key_canaries = pgTable('master_key_canaries', {
  key_id: varchar({ length: 32 }).primaryKey(),
  canary: bytea().notNull(),
  ...created
})

/** Keys of the service itself, wrapped by a master key. */
export const service_keys = pgTable('service_keys', {
  name: varchar({ length: 32 }).primaryKey(),
  wrapped: bytea().notNull(),
  ...created
})

/** The newest backup of this database that was written whole; a restored one has none yet. */
export const last_backup = pgTable('last_backup', {
  id: integer().primaryKey().default(1),
  made_at: moment().notNull(),
  bytes: count().notNull()
}, (table) => [check('last_backup_one', sql`${table.id} = 1`)])

export const organizations = pgTable('organizations', {
  id: ulid().primaryKey(),
  name: name(),
  slug: slug().unique(),
  status: varchar({ length: 16, enum: ORGANIZATION_STATUSES }).notNull().default('active'),
  plan: varchar({ length: 64 }).notNull().references(() => plans.name),
  /** Seals every document of the organization at rest; wrapped by a master key. */
  storage_key: bytea().notNull(),
  /** Members act in it only when they have a second factor. */
  require_second_factor: boolean().notNull().default(false),
  ...timestamps
})

/** What every query of an organization that somebody acts in selects. */
export const organizationColumns = {
  id: organizations.id,
  name: organizations.name,
  slug: organizations.slug,
  status: organizations.status,
  storage_key: organizations.storage_key,
  require_second_factor: organizations.require_second_factor,
  created_at: organizations.created_at,
  updated_at: organizations.updated_at
}

/**
 * The next version id and audit sequence of an organization, the MAC of its last event, and how much it stores. Taken
 * last before a commit, so ids grow in its order. Refers to no organization: events outlive theirs, and so does where
 * their chain ends.
 */
export const organization_counters = pgTable('organization_counters', {
  organization_id: ulid().primaryKey(),
  next_version: count().notNull().default(1),
  next_event: count().notNull().default(1),
  event_head: bytea(),
  /** Which of its keys the next event gets its MAC from; null for the key that every chain begins with. */
  chain_kid: ulid(),
  /** The sum of `size_bytes` over its documents and their versions. */
  stored_bytes: count().notNull().default(0),
  /** Of an organization that was deleted: no caller records a change any more. The service itself may. */
  is_closed: boolean().notNull().default(false)
})

/**
 * The lock of an organization's long operations over all instances: whoever runs one has locked the row. Refers to no
 * organization, so that the deletion of one does not wait for its operation.
 */
export const long_operations = pgTable('long_operations', {
  organization_id: ulid().primaryKey(),
  began_at: moment().notNull().default(sql`now()`)
})

/**
 * Organizations that were deleted, until nothing is left of them but their audit. Their row, and whatever lets somebody
 * in, went at once; API tokens, projects and histories, which may be very many, open nothing any more and go in the
 * background.
 */
export const organization_removals = pgTable('organization_removals', {
  organization_id: ulid().primaryKey(),
  removed_at: moment().notNull().default(sql`now()`)
})

/**
 * Slugs that organizations had before a rename or a deletion, reserved for them until a moment. Refers to no
 * organization and no person, because a reservation outlives both. `owner_id` is an owner of the organization when it
 * was deleted: its reservation counts as an organization of that person.
 */
export const former_slugs = pgTable('former_slugs', {
  organization_id: ulid().notNull(),
  slug: slug().unique(),
  reserved_until: moment().notNull(),
  owner_id: bigint({ mode: 'number' })
}, (table) => [
  primaryKey({ columns: [table.organization_id, table.slug] }),
  index('former_slugs_by_end').on(table.reserved_until),
  index('former_slugs_by_owner').on(table.owner_id).where(sql`owner_id IS NOT NULL`)
])

export const users = pgTable('users', {
  id: count().primaryKey().generatedAlwaysAsIdentity(),
  email: varchar({ length: 320 }).notNull(),
  /** What sign-in and uniqueness go by (`canonicalEmail`). */
  email_normalized: varchar({ length: 320 }).notNull().unique(),
  name: name(),
  /** Argon2id as a PHC string; null until the first one is set through a one-time link. */
  password_hash: text(),
  is_verified: boolean().notNull().default(false),
  /** Set: the account is closed. No sign-in, session or token of it counts. */
  disabled_at: moment(),
  /**
   * The row of `second_factors` that is asked for; null: none is. Here, so that to take that row away does not switch
   * the second factor off, and so that every look-up of the account knows of it.
   */
  second_factor_id: count(),
  ...timestamps,
  ...authenticated
})

/** What every query of a person selects: all but the password's hash. */
export const userColumns = {
  id: users.id,
  email: users.email,
  name: users.name,
  is_verified: users.is_verified,
  disabled_at: users.disabled_at,
  second_factor_id: users.second_factor_id,
  created_at: users.created_at,
  updated_at: users.updated_at
}

/**
 * Wrong passwords: counted by device, by account and network, by account, by session; alike whether there is such an
 * account or not.
 */
export const sign_in_failures = pgTable('sign_in_failures', {
  /** Keyed hash of what is counted (`lookupHash`): addresses and networks can be guessed. */
  key: bytea().primaryKey(),
  failures: integer().notNull(),
  /** Nobody is let in before. */
  locked_until: moment(),
  /** Of the last attempt; of an account's count, of the first one in its window. */
  last_at: moment().notNull().default(sql`now()`)
}, (table) => [index().on(table.last_at)])

/** Browsers that somebody has signed in with: what strangers guess elsewhere does not keep them out. */
export const sign_in_devices = pgTable('sign_in_devices', {
  id: count().primaryKey().generatedAlwaysAsIdentity(),
  token_hash: bytea().notNull(),
  user_id: count().notNull().references(() => users.id, { onDelete: 'cascade' }),
  expires_at: moment().notNull()
}, (table) =>
  [uniqueIndex().on(table.user_id, table.token_hash), index().on(table.token_hash), index().on(table.expires_at)])

/** One-time links with which people set their password. */
export const password_links = pgTable('password_links', {
  token_hash: bytea().primaryKey(),
  user_id: count().notNull().references(() => users.id, { onDelete: 'cascade' }),
  expires_at: moment().notNull(),
  ...created,
  ...authenticated
}, (table) => [index().on(table.user_id), index().on(table.expires_at)])

/** Signed-in browsers. Bearer tokens are elsewhere: neither opens the other's doors. */
export const sessions = pgTable('sessions', {
  token_hash: bytea().primaryKey(),
  user_id: count().notNull().references(() => users.id, { onDelete: 'cascade' }),
  seen_at: moment().notNull().default(sql`now()`),
  expires_at: moment().notNull(),
  ...created,
  ...authenticated
}, (table) => [index().on(table.user_id), index().on(table.seen_at), index().on(table.expires_at)])

/**
 * What makes the codes of a second factor (TOTP). Counts once the account names it: before, it is being set up.
 */
export const second_factors = pgTable('second_factors', {
  user_id: count().primaryKey().references(() => users.id, { onDelete: 'cascade' }),
  /** Of each that is set up another one. */
  id: count().notNull(),
  /** Wrapped by a master key, bound to account and id. */
  secret: bytea().notNull(),
  /** The time step of the newest code that was taken: none of it or before it is taken any more. */
  last_step: count(),
  ...created,
  ...authenticated
})

/** Codes that stand in for a lost second factor, once each: a used one is gone. */
export const recovery_codes = pgTable('recovery_codes', {
  user_id: count().notNull().references(() => users.id, { onDelete: 'cascade' }),
  code_hash: bytea().notNull(),
  /** Of which second factor. */
  factor_id: count().notNull(),
  ...created,
  ...authenticated
}, (table) => [primaryKey({ columns: [table.user_id, table.code_hash] })])

/** Sign-ins whose password was right and that wait for the second factor: no sessions, and worth nothing as one. */
export const sign_in_steps = pgTable('sign_in_steps', {
  token_hash: bytea().primaryKey(),
  user_id: count().notNull().references(() => users.id, { onDelete: 'cascade' }),
  wrong_codes: integer().notNull().default(0),
  expires_at: moment().notNull(),
  ...created,
  ...authenticated
}, (table) => [index().on(table.user_id), index().on(table.expires_at)])

/** Applications that act for users. All are public: they keep no secret. */
export const oauth_clients = pgTable('oauth_clients', {
  id: varchar({ length: 64 }).primaryKey(),
  name: name(),
  /**
   * Compared byte by byte, but for the port of a loopback address; one that begins with `/` is a page of this service.
   */
  redirect_uris: text().array().notNull(),
  is_first_party: boolean().notNull().default(false),
  disabled_at: moment(),
  ...created,
  ...authenticated
})

/** Authorization requests that wait for somebody's decision, bound to the session that was shown the page. */
export const oauth_requests = pgTable('oauth_requests', {
  id_hash: bytea().primaryKey(),
  session_hash: bytea().notNull().references(() => sessions.token_hash, { onDelete: 'cascade' }),
  client_id: varchar({ length: 64 }).notNull().references(() => oauth_clients.id, { onDelete: 'cascade' }),
  redirect_uri: text().notNull(),
  state: text(),
  code_challenge: varchar({ length: 43 }).notNull(),
  scopes: text().array().notNull(),
  expires_at: moment().notNull(),
  ...authenticated
}, (table) => [index().on(table.session_hash), index().on(table.client_id), index().on(table.expires_at)])

/** What a user has granted to a client: everything that was ever issued for it, a family, lives and dies with it. */
export const oauth_grants = pgTable('oauth_grants', {
  id: count().primaryKey().generatedAlwaysAsIdentity(),
  user_id: count().notNull().references(() => users.id, { onDelete: 'cascade' }),
  client_id: varchar({ length: 64 }).notNull().references(() => oauth_clients.id, { onDelete: 'cascade' }),
  scopes: text().array().notNull(),
  expires_at: moment().notNull(),
  revoked_at: moment(),
  ...created,
  ...authenticated
}, (table) =>
  [index().on(table.user_id), index().on(table.client_id), index().on(table.expires_at), index().on(table.revoked_at)])

/** Authorization codes: redeemed once, and remembered until they expire so that a second use is noticed. */
export const oauth_codes = pgTable('oauth_codes', {
  code_hash: bytea().primaryKey(),
  grant_id: count().notNull().references(() => oauth_grants.id, { onDelete: 'cascade' }),
  redirect_uri: text().notNull(),
  code_challenge: varchar({ length: 43 }),
  wrong_verifiers: integer().notNull().default(0),
  used_at: moment(),
  expires_at: moment().notNull(),
  ...authenticated
}, (table) => [index().on(table.grant_id), index().on(table.expires_at)])

/**
 * An access token and its refresh token: one record, so that they end together. A used one stays, to notice a second
 * use.
 */
export const oauth_tokens = pgTable('oauth_tokens', {
  id: count().primaryKey().generatedAlwaysAsIdentity(),
  grant_id: count().notNull().references(() => oauth_grants.id, { onDelete: 'cascade' }),
  access_hash: bytea().notNull().unique(),
  refresh_hash: bytea().notNull().unique(),
  /** Of the access token; at most those of the grant. */
  scopes: text().array().notNull(),
  access_expires_at: moment().notNull(),
  refresh_expires_at: moment().notNull(),
  used_at: moment(),
  ...created,
  ...authenticated
}, (table) => [index().on(table.grant_id)])

/**
 * What happened to a person's account, as the person sees it on `/account`: with address and browser, which their
 * organizations do not learn. Kept for a year.
 */
export const personal_events = pgTable('personal_events', {
  id: count().primaryKey(),
  user_id: count().notNull().references(() => users.id, { onDelete: 'cascade' }),
  occurred_at: moment().notNull(),
  action: varchar({ length: 64 }).notNull(),
  actor_type: varchar({ length: 16, enum: ['user', 'operator'] }).notNull(),
  ip: varchar({ length: 64 }),
  user_agent: varchar({ length: 256 }),
  details: jsonb().$type<Record<string, string | number | boolean | null>>(),
  ...authenticated
}, (table) => [index().on(table.user_id, table.occurred_at, table.id), index().on(table.occurred_at)])

/**
 * Open invitations. A row says nothing about an account: the address is compared with that of the person who accepts.
 * Accepting, declining, withdrawing and expiry delete the row.
 */
export const invitations = pgTable('invitations', {
  organization_id: ulid().notNull().references(() => organizations.id, { onDelete: 'cascade' }),
  id: ulid().notNull(),
  /** As the inviter typed it. */
  email: varchar({ length: 320 }).notNull(),
  /** `canonicalEmail` of it. */
  email_normalized: varchar({ length: 320 }).notNull(),
  role: varchar({ length: 32, enum: ROLES }).notNull(),
  /** Null: the operator. */
  invited_by_type: varchar({ length: 16, enum: ['user', 'api_token'] }),
  invited_by_id: count(),
  invited_by_name: varchar({ length: NAME_LENGTH }),
  /** SHA-256 of the secret in the last link that was mailed; null: no mail was sent. */
  token_hash: bytea(),
  expires_at: moment().notNull(),
  ...created,
  ...authenticated
}, (table) => [
  primaryKey({ columns: [table.organization_id, table.id] }),
  uniqueIndex('invitations_one_of_address').on(table.organization_id, table.email_normalized),
  uniqueIndex('invitations_by_token').on(table.organization_id, table.token_hash),
  index().on(table.email_normalized), index().on(table.expires_at)
])

/** When an organization last mailed an invitation to an address: one mail a day, whatever becomes of the invitation. */
export const invitation_mails = pgTable('invitation_mails', {
  organization_id: ulid().notNull().references(() => organizations.id, { onDelete: 'cascade' }),
  email_normalized: varchar({ length: 320 }).notNull(),
  sent_at: moment().notNull().default(sql`now()`)
}, (table) => [primaryKey({ columns: [table.organization_id, table.email_normalized] }), index().on(table.sent_at)])

export const members = pgTable('members', {
  organization_id: ulid().notNull().references(() => organizations.id, { onDelete: 'cascade' }),
  user_id: count().notNull().references(() => users.id, { onDelete: 'cascade' }),
  role: varchar({ length: 32, enum: ROLES }).notNull(),
  status: varchar({ length: 16, enum: MEMBER_STATUSES }).notNull().default('active'),
  joined_at: moment().notNull().default(sql`now()`),
  ...authenticated
}, (table) => [primaryKey({ columns: [table.organization_id, table.user_id] }), index().on(table.user_id)])

/** Refers to no organization: that row goes first, and a token without one is none (`organization_removals`). */
export const api_tokens = pgTable('api_tokens', {
  id: count().primaryKey().generatedAlwaysAsIdentity(),
  organization_id: ulid().notNull(),
  name: name(),
  /** SHA-256 of the token; the token itself is nowhere. */
  token_hash: bytea().notNull().unique(),
  token_prefix: varchar({ length: 12 }).notNull(),
  abilities: text().array().$type<Ability[]>().notNull(),
  /** Ids, not slugs: a rename moves nothing in or out. Null: the whole organization. */
  slices: jsonb().$type<{ project_id: string, target_id: string | null, environment_id: string | null }[]>(),
  expires_at: moment(),
  last_used_at: moment(),
  /** Who made it, as they were called then; null: an operator. */
  created_by_type: varchar({ length: 16, enum: ['user', 'api_token'] }),
  created_by_id: count(),
  created_by_name: varchar({ length: NAME_LENGTH }),
  /**
   * The person, and the grant of theirs, through which it was made, be it by other tokens between: it ends with both.
   */
  user_id: count().references(() => users.id, { onDelete: 'cascade' }),
  grant_id: count().references(() => oauth_grants.id, { onDelete: 'cascade' }),
  ...timestamps,
  ...authenticated
}, (table) => [
  unique('api_tokens_of_organization').on(table.organization_id, table.id), index().on(table.user_id),
  index().on(table.grant_id), index('api_tokens_by_expiry').on(table.expires_at)
])

/** The value that a token had before its last rotation, for as long as it lives on. */
export const former_token_hashes = pgTable('former_token_hashes', {
  organization_id: ulid().notNull(),
  token_id: count().notNull(),
  token_hash: bytea().notNull().unique(),
  expires_at: moment().notNull(),
  ...authenticated
}, (table) => [
  primaryKey({ columns: [table.organization_id, table.token_id] }),
  foreignKey({
    name: 'former_token_hashes_of_token',
    columns: [table.organization_id, table.token_id],
    foreignColumns: [api_tokens.organization_id, api_tokens.id]
  }).onDelete('cascade')
])

/** What API tokens can end with, in the background, where they are many. */
export const ENDINGS = ['member', 'grant', 'level'] as const

/**
 * What ended with more API tokens of an organization than one statement takes: a membership or a grant, by the id of
 * the user or the grant, or levels, all of them (0). The work list of the removal. Refers to nothing: it is written
 * after what goes before an organization (0029), and without tokens it goes by itself.
 */
export const token_removals = pgTable('token_removals', {
  organization_id: ulid().notNull(),
  ended: varchar({ length: 16, enum: ENDINGS }).notNull(),
  ended_id: count().notNull()
}, (table) => [primaryKey({ columns: [table.organization_id, table.ended, table.ended_id] })])

/** Refers to no organization: that row goes first (`organization_removals`), and what hangs on this one after it. */
export const projects = pgTable('projects', {
  id: ulid().notNull(),
  organization_id: ulid().notNull(),
  name: name(),
  slug: slug(),
  description: text(),
  secret_format: varchar({ length: 8, enum: SECRET_FORMATS }).notNull(),
  encryption_type: varchar({ length: 8, enum: MANAGED }).notNull(),
  history_policy: varchar({ length: 16, enum: HISTORY_POLICIES }).notNull(),
  /** Version of the one active key; every current document of the project is under it. */
  key_version: integer().notNull(),
  ...timestamps,
  ...authenticated
}, (table) => [
  primaryKey({ columns: [table.organization_id, table.id] }),
  uniqueIndex('projects_slug_taken').on(table.organization_id, table.slug)
])

// A row's reference to the project of the same organization; below, to its target, environment and history.
const inProject = (name: string, table: { organization_id: AnyPgColumn, project_id: AnyPgColumn }) =>
  foreignKey({
    name: `${name}_in_project`,
    columns: [table.organization_id, table.project_id],
    foreignColumns: [projects.organization_id, projects.id]
  }).onDelete('cascade')

/**
 * How much is below a project, kept by the statements that change it: a list of projects counts nothing. Beside the
 * project's row, because a write of a document shares that one with others.
 */
export const project_counts = pgTable('project_counts', {
  organization_id: ulid().notNull(),
  project_id: ulid().notNull(),
  target_count: integer().notNull().default(0),
  environment_count: integer().notNull().default(0),
  /** Current documents at all its levels. */
  secret_count: integer().notNull().default(0)
}, (table) => [primaryKey({ columns: [table.organization_id, table.project_id] }), inProject('project_counts', table)])

/** People of an organization who share roles in projects. */
export const teams = pgTable('teams', {
  id: ulid().notNull(),
  organization_id: ulid().notNull().references(() => organizations.id, { onDelete: 'cascade' }),
  name: name(),
  slug: slug(),
  description: text(),
  ...timestamps,
  ...authenticated
}, (table) => [
  primaryKey({ columns: [table.organization_id, table.id] }),
  uniqueIndex('teams_slug_taken').on(table.organization_id, table.slug)
])

const inTeam = (name: string, table: { organization_id: AnyPgColumn, team_id: AnyPgColumn }) =>
  foreignKey({
    name: `${name}_in_team`,
    columns: [table.organization_id, table.team_id],
    foreignColumns: [teams.organization_id, teams.id]
  }).onDelete('cascade')

/** Who is in a team: members of its organization, for as long as they are. */
export const team_members = pgTable('team_members', {
  organization_id: ulid().notNull(),
  team_id: ulid().notNull(),
  user_id: count().notNull(),
  ...created,
  ...authenticated
}, (table) => [
  primaryKey({ columns: [table.organization_id, table.team_id, table.user_id] }),
  inTeam('team_members', table),
  foreignKey({
    name: 'team_members_are_members',
    columns: [table.organization_id, table.user_id],
    foreignColumns: [members.organization_id, members.user_id]
  }).onDelete('cascade'),
  index().on(table.organization_id, table.user_id)
])

/** Which projects a team holds, and the role that its members have in each. */
export const team_projects = pgTable('team_projects', {
  organization_id: ulid().notNull(),
  team_id: ulid().notNull(),
  project_id: ulid().notNull(),
  role: varchar({ length: 32, enum: ROLES }).notNull(),
  ...created,
  ...authenticated
}, (table) => [
  primaryKey({ columns: [table.organization_id, table.team_id, table.project_id] }),
  inTeam('team_projects', table),
  inProject('team_projects', table),
  index().on(table.organization_id, table.project_id),
  index().on(table.organization_id, table.team_id, table.role)
])

/** Keys of projects, every one ever used. What could help a guess is wrapped by a master key. */
export const encryption_keys = pgTable('encryption_keys', {
  id: count().primaryKey().generatedAlwaysAsIdentity(),
  organization_id: ulid().notNull(),
  project_id: ulid().notNull(),
  version: integer().notNull(),
  managed: varchar({ length: 8, enum: MANAGED }).notNull(),
  /** Server-managed: the key string, wrapped. A rotated key's is null once the server had to forget it. */
  key_string: bytea(),
  /** Server-managed: the derived data key, wrapped, so that a read needs no PBKDF2. Forgotten with the key string. */
  data_key: bytea(),
  /** Client-managed: the proof to compare with, wrapped. */
  key_check: bytea(),
  /** Finds the proof among all of the project's: keyed, so that it tells nothing. */
  key_check_hash: bytea(),
  /** Wrapped. */
  salt: bytea().notNull(),
  iterations: integer().notNull(),
  hint: varchar({ length: 255 }),
  is_active: boolean().notNull(),
  ...created,
  rotated_at: moment()
}, (table) => [
  inProject('encryption_keys', table),
  uniqueIndex().on(table.organization_id, table.project_id, table.version),
  uniqueIndex('encryption_keys_one_active').on(table.organization_id, table.project_id).where(sql`${table.is_active}`),
  uniqueIndex('encryption_keys_by_check').on(
    table.organization_id, table.project_id, table.key_check_hash
  ).where(sql`${table.key_check} is not null`),
  check('encryption_keys_check_hash', sql`(${table.key_check_hash} is null) = (${table.key_check} is null)`),
  // The last key that a client had, however many came after it.
  index('encryption_keys_of_clients').on(
    table.organization_id, table.project_id, table.version
  ).where(sql`${table.managed} = 'client'`),
  check('encryption_keys_custody', sql`CASE WHEN ${table.managed} = 'client' THEN ${table.key_string} is null AND ${table.data_key} is null AND ${table.key_check} is not null
    ELSE ${table.key_check} is null AND (${table.key_string} is null) = (${table.data_key} is null) AND (${table.key_string} is not null OR NOT ${table.is_active}) END`)
])

/** History that moves onto the active key of its project, or has: what is asked for survives every restart here. */
export const re_encryptions = pgTable('re_encryptions', {
  organization_id: ulid().notNull(),
  project_id: ulid().notNull(),
  /** Versions that were to move, and those that have. */
  total: integer().notNull(),
  moved: integer().notNull().default(0),
  started_at: moment().notNull().default(sql`now()`),
  finished_at: moment(),
  /** Versions that were left when it finished, because they do not open. */
  unreadable: integer().notNull().default(0)
}, (table) => [
  primaryKey({ columns: [table.organization_id, table.project_id] }), inProject('re_encryptions', table),
  index('re_encryptions_under_way').on(table.organization_id, table.project_id).where(sql`${table.finished_at} is null`)
])

/** What every query of a key selects: it goes with the document or version that the key opens. */
export const keyColumns = {
  id: encryption_keys.id,
  organization_id: encryption_keys.organization_id,
  project_id: encryption_keys.project_id,
  version: encryption_keys.version,
  managed: encryption_keys.managed,
  key_string: encryption_keys.key_string,
  data_key: encryption_keys.data_key,
  key_check: encryption_keys.key_check,
  salt: encryption_keys.salt,
  iterations: encryption_keys.iterations,
  is_active: encryption_keys.is_active,
  created_at: encryption_keys.created_at,
  rotated_at: encryption_keys.rotated_at
}

export const targets = pgTable('targets', {
  id: ulid().notNull(),
  organization_id: ulid().notNull(),
  project_id: ulid().notNull(),
  name: name(),
  slug: slug(),
  description: text(),
  /** As in `project_counts`. */
  environment_count: integer().notNull().default(0),
  secret_count: integer().notNull().default(0),
  ...timestamps,
  ...authenticated
}, (table) => [
  primaryKey({ columns: [table.organization_id, table.id] }),
  inProject('targets', table),
  uniqueIndex('targets_slug_taken').on(table.organization_id, table.project_id, table.slug)
])

const inTarget = (name: string, table: { organization_id: AnyPgColumn, target_id: AnyPgColumn }) =>
  foreignKey({
    name: `${name}_in_target`,
    columns: [table.organization_id, table.target_id],
    foreignColumns: [targets.organization_id, targets.id]
  }).onDelete('cascade')

export const environments = pgTable('environments', {
  id: ulid().notNull(),
  organization_id: ulid().notNull(),
  project_id: ulid().notNull(),
  target_id: ulid().notNull(),
  name: name(),
  slug: slug(),
  description: text(),
  status: varchar({ length: SLUG_LENGTH }).notNull(),
  is_production: boolean().notNull(),
  ...timestamps,
  ...authenticated
}, (table) => [
  primaryKey({ columns: [table.organization_id, table.id] }),
  inProject('environments', table),
  inTarget('environments', table),
  uniqueIndex('environments_slug_taken').on(table.organization_id, table.target_id, table.slug),
  index().on(table.organization_id, table.project_id)
])

/**
 * What the versions of a secret hang on. A purge gives the secret a new history, the delete of its level takes it away:
 * what hangs on the old one is then reachable from nowhere, at once, and removed in the background however much it is.
 * Refers to no organization, as projects do.
 */
export const histories = pgTable('histories', {
  organization_id: ulid().notNull(),
  id: ulid().notNull(),
  /** Set: no secret has it any more. */
  removed_at: moment()
}, (table) => [
  primaryKey({ columns: [table.organization_id, table.id] }),
  index('histories_removed').on(table.organization_id, table.id).where(sql`${table.removed_at} is not null`)
])

const inHistory = (name: string, table: { organization_id: AnyPgColumn, history_id: AnyPgColumn }) =>
  foreignKey({
    name: `${name}_in_history`,
    columns: [table.organization_id, table.history_id],
    foreignColumns: [histories.organization_id, histories.id]
  })

/**
 * The one encrypted document of a level. A deleted secret keeps its row, without content, for as long as there is the
 * level: without it nobody could tell that there was something once (0045).
 */
export const secrets = pgTable('secrets', {
  id: ulid().notNull(),
  organization_id: ulid().notNull(),
  project_id: ulid().notNull(),
  target_id: ulid(),
  environment_id: ulid(),
  level: varchar({ length: 16, enum: LEVELS }).notNull(),
  /** Id of the project, target or environment that is the level: at most one secret each. */
  level_id: ulid().notNull(),
  /** Counts every write of the level; part of what the sealed content is bound to, and of its ETag. */
  revision: count().notNull(),
  key_version: integer().notNull(),
  /** The blob, sealed once more at rest; null after a delete. */
  sealed: bytea(),
  size_bytes: integer().notNull(),
  /** Version recorded by the last write; null after `no_backup`, and when that version is gone. */
  version: count(),
  history_id: ulid().notNull(),
  /** Versions in its history, and their `size_bytes` together, kept by the statements that change it. */
  version_count: integer().notNull().default(0),
  version_bytes: count().notNull().default(0),
  ...timestamps,
  ...authenticated
}, (table) => [
  primaryKey({ columns: [table.organization_id, table.id] }),
  inProject('secrets', table),
  inTarget('secrets', table),
  foreignKey({
    name: 'secrets_in_environment',
    columns: [table.organization_id, table.environment_id],
    foreignColumns: [environments.organization_id, environments.id]
  }).onDelete('cascade'),
  inHistory('secrets', table),
  uniqueIndex('secrets_one_of_level').on(table.organization_id, table.level_id),
  uniqueIndex('secrets_one_of_history').on(table.organization_id, table.history_id),
  index().on(table.organization_id, table.project_id, table.id),
  index().on(table.organization_id, table.target_id),
  index().on(table.organization_id, table.environment_id)
])

/** Immutable snapshots, numbered per organization in the order of commits. */
export const secret_versions = pgTable('secret_versions', {
  organization_id: ulid().notNull(),
  id: count().notNull(),
  history_id: ulid().notNull(),
  action: varchar({ length: 16, enum: VERSION_ACTIONS }).notNull(),
  /** The level's revision that this write made: a current document older than its newest version was rolled back. */
  revision: count().notNull(),
  key_version: integer().notNull(),
  sealed: bytea().notNull(),
  size_bytes: integer().notNull(),
  restored_from: count(),
  created_by_id: count(),
  created_by_name: varchar({ length: NAME_LENGTH }),
  ...created
}, (table) => [
  primaryKey({ columns: [table.organization_id, table.id] }),
  inHistory('secret_versions', table).onDelete('cascade'),
  // A page of a history, and what waits under an older key, are found in an index alone.
  index('secret_versions_of_history').on(table.organization_id, table.history_id, table.id),
  index('secret_versions_by_key').on(
    table.organization_id, table.history_id, table.key_version, table.id, table.created_at
  )
])

/**
 * One row for each acknowledged change, in its transaction, and for what reveals something. No value, key, proof, salt
 * or token is ever in it.
 */
export const audit_events = pgTable('audit_events', {
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
  /** Which key of the service made the MAC. */
  chain_kid: varchar({ length: 32 }).notNull(),
  /** Over everything above and the MAC of the event before. */
  mac: bytea().notNull()
}, (table) => {
  const { organization_id, seq, occurred_at, action, actor_type, actor_id, resource_type, resource_id } = table
  // A list with filters reads ranges of one of these indexes, newest first. Without a filter by action, it reads one
  // range for each action (`src/repositories/events.ts`, decision 0057).
  const newest = [action, occurred_at, seq] as const
  return [
    primaryKey({ columns: [organization_id, seq] }),
    check('audit_events_numbers', sql`${seq} > 0`),
    index('audit_events_by_time').on(organization_id, occurred_at, seq),
    index('audit_events_by_action').on(organization_id, ...newest),
    index('audit_events_by_actor').on(organization_id, actor_type, actor_id, ...newest),
    index('audit_events_by_resource').on(organization_id, resource_type, resource_id, ...newest),
    index('audit_events_by_resource_and_actor')
      .on(organization_id, resource_type, resource_id, actor_type, actor_id, ...newest)
  ]
})

/**
 * Events of people whose organization's counter was held when they happened: recorded with what they are about, and
 * moved to `audit_events` when the counter is free. Refers to no organization, so that an insert waits for no change of
 * one.
 */
export const late_events = pgTable('late_events', {
  organization_id: ulid().notNull(),
  id: count().notNull().generatedAlwaysAsIdentity(),
  occurred_at: moment().notNull().default(sql`now()`),
  event: jsonb().$type<EventRow>().notNull(),
  ...authenticated
}, (table) => [primaryKey({ columns: [table.organization_id, table.id] })])

/**
 * Keys of an organization's chain of events, but for the one that every chain begins with, each wrapped by a master key
 * and bound to its place. Like the events, they stay when the organization goes.
 */
export const chain_keys = pgTable('chain_keys', {
  organization_id: ulid().notNull(),
  kid: ulid().notNull(),
  /** The first event under it; the one before hands over. */
  from_seq: count().notNull(),
  wrapped: bytea().notNull(),
  ...created
}, (table) => [
  primaryKey({ columns: [table.organization_id, table.kid] }),
  uniqueIndex('chain_keys_in_order').on(table.organization_id, table.from_seq)
])

/** What the operator gives away: a share of each subscription invoice, or an amount. */
export const coupons = pgTable('coupons', {
  code: varchar({ length: COUPON_LENGTH }).primaryKey(),
  percent_off: integer(),
  amount_off: count(),
  currency: char({ length: CURRENCY_LENGTH }),
  valid_until: moment(),
  max_redemptions: integer(),
  /** Kept by the statement that redeems it. */
  redemptions: integer().notNull().default(0),
  ...created
}, (table) => [
  check('coupons_off', sql`CASE WHEN ${table.percent_off} is null THEN ${table.amount_off} > 0 AND ${table.currency} is not null
    ELSE ${table.percent_off} BETWEEN 1 AND 100 AND ${table.amount_off} is null AND ${table.currency} is null END`)
])

/**
 * Whom an organization's invoices are for, and what is counted of them. Whatever changes money of an organization holds
 * this row, so such changes take turns.
 */
export const billing_accounts = pgTable('billing_accounts', {
  organization_id: ulid().primaryKey().references(() => organizations.id, { onDelete: 'cascade' }),
  name: varchar({ length: NAME_LENGTH }).notNull().default(''),
  address: varchar({ length: ADDRESS_LENGTH }).notNull().default(''),
  tax_id: varchar({ length: TAX_ID_LENGTH }).notNull().default(''),
  next_invoice: integer().notNull().default(1),
  coupon: varchar({ length: COUPON_LENGTH }).references(() => coupons.code),
  ...timestamps
})

/** What an organization has in credit, by currency: its next invoices take it. It was received, or given back. */
export const credits = pgTable('credits', {
  organization_id: ulid().notNull().references(() => organizations.id, { onDelete: 'cascade' }),
  currency: currency(),
  amount: count().notNull()
}, (table) => [
  primaryKey({ columns: [table.organization_id, table.currency] }),
  check('credits_amount', sql`${table.amount} >= 0`)
])

/** Which coupons an organization has redeemed: each once, also when it took it away again. */
export const coupon_redemptions = pgTable('coupon_redemptions', {
  organization_id: ulid().notNull().references(() => organizations.id, { onDelete: 'cascade' }),
  coupon: varchar({ length: COUPON_LENGTH }).notNull().references(() => coupons.code),
  ...created
}, (table) => [primaryKey({ columns: [table.organization_id, table.coupon] })])

/** What an organization pays for its plan. A row ends with its last period. */
export const subscriptions = pgTable('subscriptions', {
  organization_id: ulid().primaryKey().references(() => organizations.id, { onDelete: 'cascade' }),
  id: ulid().notNull(),
  plan: varchar({ length: 64 }).notNull().references(() => plans.name),
  interval: varchar({ length: 8, enum: INTERVALS }).notNull(),
  currency: currency(),
  /** What one period costs. */
  amount: count().notNull(),
  /** Periods are counted from here, so that the 31st comes again after a short month. */
  anchor: moment().notNull(),
  /** How many periods ended since. */
  periods: integer().notNull().default(0),
  period_start: moment().notNull(),
  period_end: moment().notNull(),
  /** What the current period stands on: what was received for it, a change of plan gives a part of back. */
  invoice_id: ulid().notNull(),
  cancel_at_period_end: boolean().notNull().default(false),
  ...timestamps
}, (table) => [
  index().on(table.period_end),
  foreignKey({
    name: 'subscriptions_on_invoice',
    columns: [table.organization_id, table.invoice_id],
    foreignColumns: [invoices.organization_id, invoices.id]
  })
])

/** How an organization pays. No number of a card or an account is ever in it. */
export const payment_methods = pgTable('payment_methods', {
  organization_id: ulid().notNull().references(() => organizations.id, { onDelete: 'cascade' }),
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

// Invoices, charges and refunds refer to no organization: they stay for the operator's books when it is deleted.

/** Numbered without a gap per organization, and never changed but for what became of them. */
export const invoices = pgTable('invoices', {
  organization_id: ulid().notNull(),
  id: ulid().notNull(),
  number: integer().notNull(),
  status: varchar({ length: 8, enum: INVOICE_STATUSES }).notNull(),
  currency: currency(),
  lines: jsonb().$type<InvoiceLine[]>().notNull(),
  /** The sum of the lines, what the coupon and the credit take off it, and what is left to pay. */
  subtotal: count().notNull(),
  discount: count().notNull(),
  credit: count().notNull(),
  total: count().notNull(),
  /** What a change of plan left over of its period: credit as soon as the invoice is paid, and as long as it is. */
  unused: count().notNull().default(0),
  /** Who they were when it was made. */
  seller: jsonb().$type<Party>().notNull(),
  buyer: jsonb().$type<Party>().notNull(),
  /** What the buyer wants to read on it, and what the operator writes on each, as they were when it was made. */
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
 * Money that is asked for by an invoice. The row is the intent: what the provider says comes into it later. It is to be
 * asked as long as `submitted_at` is null: where `asked_at` is too, it was never told; else nobody knows what came of
 * it.
 */
export const charges = pgTable('charges', {
  organization_id: ulid().notNull(),
  id: ulid().notNull(),
  invoice_id: ulid().notNull(),
  payment_method_id: ulid(),
  provider: varchar({ length: 32 }).notNull(),
  provider_reference: varchar({ length: LABEL_LENGTH }),
  /** What the provider says became of it: the operator may have noted down something else. Null until it answered. */
  provider_status: varchar({ length: 16, enum: PAYMENT_STATUSES }),
  /** What the operator noted down: beside what the provider says, it shows what may have been received twice. */
  noted_status: varchar({ length: 16, enum: PAYMENT_STATUSES }),
  status: varchar({ length: 16, enum: PAYMENT_STATUSES }).notNull().default('pending'),
  currency: currency(),
  amount: count().notNull(),
  /** Of refunds that did not fail. */
  refunded: count().notNull().default(0),
  /** When the provider was asked last, set before each call. */
  asked_at: moment(),
  /** When it answered, or a note made it needless to ask. */
  submitted_at: moment(),
  settled_at: moment(),
  ...created
}, (table) => [
  primaryKey({ columns: [table.organization_id, table.id] }),
  foreignKey({
    name: 'charges_of_invoice',
    columns: [table.organization_id, table.invoice_id],
    foreignColumns: [invoices.organization_id, invoices.id]
  }),
  index('charges_by_invoice').on(table.organization_id, table.invoice_id),
  index('charges_to_submit').on(table.provider, table.asked_at.asc().nullsFirst(), table.id)
    .where(sql`${table.submitted_at} is null`),
  check('charges_refunded', sql`${table.amount} > 0 AND ${table.refunded} BETWEEN 0 AND ${table.amount}`)
])

/** Money that goes back, as a charge: the row is the intent. */
export const refunds = pgTable('refunds', {
  organization_id: ulid().notNull(),
  id: ulid().notNull(),
  charge_id: ulid().notNull(),
  /** Who has the money. */
  provider: varchar({ length: 32 }).notNull(),
  provider_reference: varchar({ length: LABEL_LENGTH }),
  /** What the provider says became of it, and what the operator noted down, as of a charge. */
  provider_status: varchar({ length: 16, enum: PAYMENT_STATUSES }),
  noted_status: varchar({ length: 16, enum: PAYMENT_STATUSES }),
  /** When the operator looked at what these two say; null again once the provider says something else. */
  checked_at: moment(),
  status: varchar({ length: 16, enum: PAYMENT_STATUSES }).notNull().default('pending'),
  amount: count().notNull(),
  reason: varchar({ length: LABEL_LENGTH }),
  asked_at: moment(),
  submitted_at: moment(),
  settled_at: moment(),
  ...created
}, (table) => [
  primaryKey({ columns: [table.organization_id, table.id] }),
  foreignKey({
    name: 'refunds_of_charge',
    columns: [table.organization_id, table.charge_id],
    foreignColumns: [charges.organization_id, charges.id]
  }),
  index('refunds_by_charge').on(table.organization_id, table.charge_id),
  index('refunds_to_submit').on(table.provider, table.asked_at.asc().nullsFirst(), table.id)
    .where(sql`${table.submitted_at} is null`),
  check('refunds_amount', sql`${table.amount} > 0`)
])

/** API calls of an organization in a month, the first day of which names it. */
export const api_usage = pgTable('api_usage', {
  organization_id: ulid().notNull().references(() => organizations.id, { onDelete: 'cascade' }),
  month: date({ mode: 'string' }).notNull(),
  calls: count().notNull()
}, (table) => [primaryKey({ columns: [table.organization_id, table.month] })])

/** The first answer to a request that may be repeated: it is given again. */
export const idempotency_keys = pgTable('idempotency_keys', {
  organization_id: ulid().notNull().references(() => organizations.id, { onDelete: 'cascade' }),
  /** Who sent it, as `user:17`. */
  principal: varchar({ length: 32 }).notNull(),
  /** Keyed hash of the header, in hexadecimal, bound to organization and principal (`lookupHash`). */
  key: varchar({ length: 255 }).notNull(),
  /** Keyed hash of the header, the method, the path and the body, bound to the same (`lookupHash`). */
  request: bytea().notNull(),
  status: integer().notNull(),
  /** Sealed under the organization's storage key, in base64. */
  answer: jsonb().$type<{ sealed: string }>().notNull(),
  ...created
}, (table) => [
  primaryKey({ columns: [table.organization_id, table.principal, table.key] }),
  // What is a day old is found without looking at the rest.
  index().on(table.created_at)
])
