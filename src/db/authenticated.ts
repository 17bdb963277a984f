import { getTableColumns } from 'drizzle-orm'
import type { PgColumn, PgTable } from 'drizzle-orm/pg-core'
import {
  api_tokens, environments, former_token_hashes, invitations, late_events, members, oauth_clients, oauth_codes,
  oauth_grants, oauth_requests, oauth_tokens, password_links, personal_events, projects, recovery_codes,
  second_factors, secrets, sessions, sign_in_steps, targets, team_members, team_projects, teams, users
} from './tables.ts'

// Rows that decide who somebody is, or what a level is, and events that have no number yet, carry a MAC over the
// fields below. Making and checking go by this one declaration, and so do the tests: a column is either authenticated
// or exempt for a reason that is given. The order of the fields is part of the MAC: a change of a list needs rows to
// be brought along anew (0015), but for a new column at its end that is `later`, and says with null what its absence
// said.

type Columns<T extends PgTable> = T['_']['columns']
type Name<T extends PgTable> = Extract<keyof Columns<T>, string>

interface Declaration<T extends PgTable, F extends Name<T>> {
  table: T
  /** The columns that name a row, in its organization where it has one. */
  key: readonly F[]
  fields: readonly F[]
  /** Of these, only whether they have a value: what they hold is sealed. */
  presence: readonly F[]
  /** Columns that are younger than MACs: left out while one has no value, so that rows from before keep theirs. */
  later: readonly F[]
  exempt: Record<Exclude<Name<T>, F | 'mac'>, string>
}

const declare = <T extends PgTable, F extends Name<T>>(
  table: T, key: readonly NoInfer<F>[], fields: readonly F[], exempt: Record<Exclude<Name<T>,
    F | 'mac'>, string>, { presence = [], later = [] }: Partial<Record<'presence' | 'later', readonly NoInfer<F>[]>> = {}
): Declaration<T, F> => ({ table, key, fields, exempt, presence, later })

const SHOWN = 'Only shown'
const WHEN = 'Nothing is decided by when it was made or changed'
const PAST = 'Which document of the level is read at a moment, each of which is authentic, and bound to the level'

export const AUTHENTICATED = {
  users: declare(users, ['id'], [
    'id', 'email', 'email_normalized', 'name', 'password_hash', 'is_verified', 'disabled_at', 'second_factor_id'
  ],
  { created_at: WHEN, updated_at: WHEN }, { later: ['second_factor_id'] }),
  members: declare(
    members, ['organization_id', 'user_id'], ['organization_id', 'user_id', 'role', 'status'],
    { joined_at: WHEN, invited_by: 'Unused' }
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
    secret: 'Wrapped for this account and id: no other one opens there', created_at: SHOWN
  }),
  recovery_codes: declare(
    recovery_codes, ['user_id', 'code_hash'], ['user_id', 'code_hash', 'factor_id'], { created_at: WHEN }
  ),
  sign_in_steps: declare(sign_in_steps, ['token_hash'], ['token_hash', 'user_id', 'expires_at'], {
    wrong_codes: 'Set back, it lets somebody guess on who knows the password; guesses are counted by account as well',
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
  { wrong_verifiers: 'Set back, it lets somebody guess at 256 random bits more often' }),
  oauth_tokens: declare(oauth_tokens, ['id'],
    [
      'id', 'grant_id', 'access_hash', 'refresh_hash', 'scopes', 'access_expires_at', 'refresh_expires_at', 'used_at'
    ], { created_at: WHEN }),
  projects: declare(projects, ['organization_id', 'id'], [
    'id', 'organization_id', 'slug', 'secret_format', 'encryption_type', 'history_policy', 'key_version'
  ],
  { name: SHOWN, description: SHOWN, created_at: WHEN, updated_at: WHEN }),
  targets: declare(targets, ['organization_id', 'id'], ['id', 'organization_id', 'project_id', 'slug'],
    {
      environment_count: SHOWN, secret_count: SHOWN, name: SHOWN, description: SHOWN, created_at: WHEN, updated_at: WHEN
    }),
  environments: declare(environments, ['organization_id', 'id'], [
    'id', 'organization_id', 'project_id', 'target_id', 'slug', 'status', 'is_production'
  ],
  { name: SHOWN, description: SHOWN, created_at: WHEN, updated_at: WHEN }),
  late_events: declare(
    late_events, ['organization_id', 'id'], ['organization_id', 'id', 'occurred_at', 'event'], {}
  ),
  secrets: declare(secrets, ['organization_id', 'id'],
    [
      'id', 'organization_id', 'project_id', 'target_id', 'environment_id', 'level', 'level_id', 'revision',
      'key_version', 'sealed', 'size_bytes'
    ],
    {
      version: 'Only shown: which version the last write recorded, until that is purged',
      history_id:
        'A purge gives another one; to change it removes the history, or brings back what a purge has not removed yet; versions are bound to the secret',
      version_count: SHOWN,
      version_bytes: 'What a purge frees: set to less, the plan of the organization is full sooner; to more, later',
      created_at: PAST,
      updated_at: PAST
    }, { presence: ['sealed'] })
} as const

export type AuthenticatedTable = keyof typeof AUTHENTICATED
type FieldsOf<N extends AuthenticatedTable> = (typeof AUTHENTICATED)[N]['fields'][number]
type ColumnsOf<N extends AuthenticatedTable> = (typeof AUTHENTICATED)[N]['table']['_']['columns']
type RowOf<N extends AuthenticatedTable> = (typeof AUTHENTICATED)[N]['table']['$inferSelect']

/** What a select needs so that its row can be checked: every authenticated column, and the MAC. */
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

/** The fields of a row in the order of the declaration, as the MAC goes over them. */
export function fieldsOf (
  name: AuthenticatedTable, row: Readonly<Record<string, unknown>>
): [name: string, value: unknown][] {
  const { fields, presence, later } = AUTHENTICATED[name] as Declaration<PgTable, string & keyof PgTable['_']['columns']>
  return fields.filter((field) => row[field] !== null || !later.includes(field)).map((field) =>
    [field, presence.includes(field) ? row[field] !== null && row[field] !== false : row[field]])
}

/** An authenticated row that came as `to_jsonb` writes it. */
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
