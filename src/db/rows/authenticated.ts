import { getTableColumns } from 'drizzle-orm'
import type { PgColumn, PgTable } from 'drizzle-orm/pg-core'
import {
  api_tokens, environments, former_token_hashes, invitations, late_events, members, oauth_clients, oauth_codes,
  oauth_grants, oauth_requests, oauth_tokens, password_links, personal_events, projects, recovery_codes,
  second_factors, secrets, sessions, sign_in_steps, targets, team_members, team_projects, teams, users
} from '../tables.ts'

// Rows that define users, access or levels, and late events, carry a MAC over the columns declared below. The code and
// the tests use this one declaration. A column is either authenticated or exempt; for each exempt column the
// declaration says what an attacker with write access to the database gains by changing it. `UNAUTHENTICATED` says the
// same for tables without a MAC. SECURITY.md lists all of these. The order of the columns is part of the MAC: after a
// release, changing a list invalidates the MACs of all rows of the table (0047).

type Columns<T extends PgTable> = T['_']['columns']
type Name<T extends PgTable> = Extract<keyof Columns<T>, string>

interface Declaration<T extends PgTable, F extends Name<T>> {
  table: T
  /** The columns that identify a row, within its organization where it has one. */
  key: readonly F[]
  fields: readonly F[]
  /** Columns of which the MAC covers only whether they have a value: their content is sealed. */
  presence: readonly F[]
  exempt: Record<Exclude<Name<T>, F | 'mac'>, string>
}

const declare = <T extends PgTable, F extends Name<T>>(
  table: T, key: readonly NoInfer<F>[], fields: readonly F[], exempt: Record<Exclude<Name<T>, F | 'mac'>, string>,
  presence: readonly NoInfer<F>[] = []
): Declaration<T, F> => ({ table, key, fields, exempt, presence })

const SHOWN = 'Only shown'
const WHEN = 'Only shown: when the row was made or changed'
const BEGAN = 'Whether the level counts as existing at a moment that is read or restored (`at`)'
const PAST =
  'Which version of the document a read or restore of a moment takes: each is sealed for its level, so only the choice changes'
const lengthOf = (list: string) => `Only shown, and the length of the list of ${list}: set lower, the list ends earlier`

export const AUTHENTICATED = {
  users: declare(users, ['id'], [
    'id', 'email', 'email_normalized', 'name', 'password_hash', 'is_verified', 'disabled_at', 'second_factor_id'
  ],
  { created_at: WHEN, updated_at: WHEN }),
  members: declare(
    members, ['organization_id', 'user_id'], ['organization_id', 'user_id', 'role', 'status'],
    { joined_at: WHEN }
  ),
  invitations: declare(invitations, ['organization_id', 'id'],
    [
      'organization_id', 'id', 'email', 'email_normalized', 'role', 'invited_by_type', 'invited_by_id',
      'invited_by_name', 'token_hash', 'expires_at'
    ], { created_at: WHEN }),
  personal_events: declare(personal_events, ['id'],
    ['id', 'user_id', 'occurred_at', 'action', 'actor_type', 'ip', 'user_agent', 'details'], {}),
  teams: declare(teams, ['organization_id', 'id'], ['id', 'organization_id', 'slug'],
    { name: SHOWN, description: SHOWN, created_at: WHEN, updated_at: WHEN }),
  team_members: declare(team_members, ['organization_id', 'team_id', 'user_id'],
    ['organization_id', 'team_id', 'user_id'], { created_at: WHEN }),
  team_projects: declare(team_projects, ['organization_id', 'team_id', 'project_id'],
    ['organization_id', 'team_id', 'project_id', 'role'], { created_at: WHEN }),
  sessions: declare(sessions, ['token_hash'], ['token_hash', 'user_id', 'seen_at', 'expires_at'], { created_at: WHEN }),
  password_links: declare(
    password_links, ['token_hash'], ['token_hash', 'user_id', 'expires_at'], { created_at: WHEN }
  ),
  second_factors: declare(second_factors, ['user_id'], ['user_id', 'id', 'last_step'], {
    secret: 'Wrapped by the master key for this account and second factor: another value does not open', created_at: SHOWN
  }),
  recovery_codes: declare(
    recovery_codes, ['user_id', 'code_hash'], ['user_id', 'code_hash', 'factor_id'], { created_at: WHEN }
  ),
  sign_in_steps: declare(sign_in_steps, ['token_hash'], ['token_hash', 'user_id', 'expires_at'], {
    wrong_codes:
      'Set back, an attacker who knows the password may try more codes in one sign-in; codes are also counted by account',
    created_at: WHEN
  }),
  api_tokens: declare(api_tokens, ['organization_id', 'id'],
    [
      'id', 'organization_id', 'name', 'token_hash', 'token_prefix', 'abilities', 'slices', 'expires_at',
      'created_by_type', 'created_by_id', 'created_by_name', 'user_id', 'grant_id'
    ],
    { last_used_at: SHOWN, created_at: WHEN, updated_at: WHEN }),
  former_token_hashes: declare(
    former_token_hashes, ['organization_id', 'token_id'], ['organization_id', 'token_id', 'token_hash', 'expires_at'], {}
  ),
  oauth_clients: declare(
    oauth_clients, ['id'], ['id', 'name', 'redirect_uris', 'is_first_party', 'disabled_at'], { created_at: WHEN }
  ),
  oauth_requests: declare(oauth_requests, ['id_hash'],
    ['id_hash', 'session_hash', 'client_id', 'redirect_uri', 'state', 'code_challenge', 'scopes', 'expires_at'], {}),
  oauth_grants: declare(
    oauth_grants, ['id'], ['id', 'user_id', 'client_id', 'scopes', 'expires_at', 'revoked_at'], { created_at: WHEN }
  ),
  oauth_codes: declare(oauth_codes, ['code_hash'], [
    'code_hash', 'grant_id', 'redirect_uri', 'code_challenge', 'used_at', 'expires_at'
  ],
  { wrong_verifiers: 'Set back, an attacker who has the code may guess more often at the 256 random bits of its verifier' }),
  oauth_tokens: declare(oauth_tokens, ['id'],
    [
      'id', 'grant_id', 'access_hash', 'refresh_hash', 'scopes', 'access_expires_at', 'refresh_expires_at', 'used_at'
    ], { created_at: WHEN }),
  projects: declare(projects, ['organization_id', 'id'], [
    'id', 'organization_id', 'slug', 'secret_format', 'encryption_type', 'history_policy', 'key_version'
  ],
  { name: SHOWN, description: SHOWN, created_at: BEGAN, updated_at: WHEN }),
  targets: declare(targets, ['organization_id', 'id'], ['id', 'organization_id', 'project_id', 'slug'],
    {
      environment_count: lengthOf('environments'),
      secret_count: SHOWN,
      name: SHOWN,
      description: SHOWN,
      created_at: BEGAN,
      updated_at: WHEN
    }),
  environments: declare(environments, ['organization_id', 'id'], [
    'id', 'organization_id', 'project_id', 'target_id', 'slug', 'status', 'is_production'
  ],
  { name: SHOWN, description: SHOWN, created_at: BEGAN, updated_at: WHEN }),
  late_events: declare(
    late_events, ['organization_id', 'id'], ['organization_id', 'id', 'occurred_at', 'event'], {}
  ),
  secrets: declare(secrets, ['organization_id', 'id'],
    [
      'id', 'organization_id', 'project_id', 'target_id', 'environment_id', 'level', 'level_id', 'revision',
      'key_version', 'sealed', 'size_bytes'
    ],
    {
      version: SHOWN,
      history_id:
        'Which versions the document has: another history takes them away, or brings back versions that a purge has not deleted yet; no version opens at another level',
      version_count: lengthOf('versions'),
      version_bytes:
        'How many bytes a purge or a delete gives back: set lower, the plan of the organization is full sooner; set higher, later',
      created_at: PAST,
      updated_at: PAST
    }, ['sealed'])
} as const

export type AuthenticatedTable = keyof typeof AUTHENTICATED

type Tables = typeof import('../tables.ts')
type TableName = { [N in keyof Tables]: Tables[N] extends PgTable ? N : never }[keyof Tables]

const BILLING = 'Billing is not authenticated'

/**
 * Tables without a MAC, and what an attacker with write access to the database gains by changing their rows. Encryption
 * protects sealed and wrapped values.
 */
export const UNAUTHENTICATED: Record<Exclude<TableName, AuthenticatedTable>, string> = {
  plans: 'Limits of each plan for all of its organizations: retention, calls a minute, projects, members, bytes',
  plan_prices: `${BILLING}: what the next invoices ask for`,
  master_key_canaries:
    'Each canary is wrapped by its master key: with a changed canary the next start ends',
  service_keys:
    'Wrapped by the master key, and canaries name the keys: with a changed or missing key the next start ends',
  last_backup: 'Only shown, in `/metrics`: when the last backup was made, and its size',
  organizations:
    'Name, slug, status, plan, and whether members need a second factor. With the slugs of two organizations exchanged, requests that name one by its slug go to the other, where the caller is a member of both. The storage key is wrapped for its organization: another one does not open',
  organization_counters:
    'The numbers of the next version and event, the end of the chain of events (`audit verify` finds a changed one, not a cut-off end), the bytes stored that the plan limits, and whether changes are refused',
  organization_removals: 'A row that is added has the service delete the projects and tokens of that organization',
  long_operations: 'A lock and when it was last taken: a changed row has no effect',
  former_slugs:
    'A removed row, or one with an earlier end, lets another organization take the slug; an added row keeps a slug from all others',
  invitation_mails:
    'When an invitation was mailed to an address: a removed or older row lets the organization send one more that day',
  sign_in_failures: 'Counts of failed sign-ins: set back, they allow more guesses; set higher, they lock people out',
  sign_in_devices: 'A row that is added gives a browser attempts of its own at an account, beside those of strangers',
  token_removals: 'A row that is added has the service delete the tokens of a member or a grant',
  project_counts: lengthOf('targets'),
  encryption_keys:
    'Key strings, data keys, salts and key checks are wrapped for their project, version and column: another value does not open. Custody, iteration count, which version is active, hint, id, times and the hash of the key check are not wrapped: with another custody, version or iteration count documents do not open, or writes are refused',
  re_encryptions: 'Progress of a re-encryption, which is shown: marked as finished, the rest of the history stays as it is',
  histories: 'A history that is marked as removed loses its versions',
  secret_versions:
    'The content is sealed for its level, number, revision and key: another value does not open. Action, author, date, `size_bytes` and which version was restored are not: another date moves a version into or out of the retention window and to another moment; another size changes what a delete gives back to the plan',
  audit_events:
    'Each event carries a MAC over itself and the event before. The API lists events as they are stored; `audit verify` finds changed, added and removed events, but not a cut-off end',
  chain_keys:
    'Wrapped for organization, name and first event: with a changed or missing key nothing can be recorded in that organization, so changes there are refused',
  coupons: `${BILLING}: discounts, and how often they can be redeemed`,
  billing_accounts: `${BILLING}: who invoices are for, the next number of an invoice, and the coupon`,
  credits: `${BILLING}: what the next invoices ask for less`,
  coupon_redemptions: `${BILLING}: without its row, an organization redeems a coupon again`,
  subscriptions: `${BILLING}: plan, price and period, and when the plan ends`,
  payment_methods: `${BILLING}: labels and references, and which one is the default`,
  invoices: `${BILLING}: amounts, parties, numbers and status`,
  charges: `${BILLING}: amounts and status; a charge that counts as not submitted is sent to the provider again`,
  refunds: `${BILLING}: amounts and status; a refund that counts as not submitted is sent to the provider again`,
  api_usage: `${BILLING}: the calls of a month, which are only shown`,
  idempotency_keys:
    'The answer is sealed for caller, key, request and status: a changed row is not found, or refused. A removed or older row lets a repeat take effect again; a newer one is given again for longer than 24 hours'
}

type FieldsOf<N extends AuthenticatedTable> = (typeof AUTHENTICATED)[N]['fields'][number]
type ColumnsOf<N extends AuthenticatedTable> = (typeof AUTHENTICATED)[N]['table']['_']['columns']
type RowOf<N extends AuthenticatedTable> = (typeof AUTHENTICATED)[N]['table']['$inferSelect']

/** The columns that verification needs: every authenticated column, and the MAC. */
export type AuthenticatedColumns<N extends AuthenticatedTable> = Pick<ColumnsOf<N>, Extract<
  FieldsOf<N> | 'mac', keyof ColumnsOf<N>>>

/** The values of an authenticated row. */
export type AuthenticatedRow<N extends AuthenticatedTable> = Pick<RowOf<N>, Extract<FieldsOf<N>, keyof RowOf<N>>>

export function authenticatedColumns<N extends AuthenticatedTable> (
  name: N, of: PgTable = AUTHENTICATED[name].table
): AuthenticatedColumns<N> {
  const columns = getTableColumns(of) as Record<string, PgColumn>
  return Object.fromEntries([
    ...AUTHENTICATED[name].fields, 'mac'
  ].map((field) => [field, columns[field]!])) as unknown as AuthenticatedColumns<N>
}

/** Converts an authenticated row from the format of `to_jsonb`. */
export function fromJson<N extends AuthenticatedTable> (
  name: N, row: Readonly<Record<string, unknown>> | null
): (AuthenticatedRow<N> & { mac: Buffer | null }) | null {
  if (row === null) return null
  const columns = getTableColumns(AUTHENTICATED[name].table as PgTable) as Record<string, PgColumn>
  return Object.fromEntries([...AUTHENTICATED[name].fields, 'mac'].map((field) =>
    [field, valueOf(columns[field]!, row[field])])) as never
}

function valueOf (column: PgColumn, value: unknown): unknown {
  if (typeof value !== 'string') return value
  if (column.getSQLType() === 'bytea') return Buffer.from(value.slice('\\x'.length), 'hex')
  return column.dataType === 'date' ? new Date(value) : value
}
