import { getTableColumns } from 'drizzle-orm'
import type { PgColumn, PgTable } from 'drizzle-orm/pg-core'
import {
  api_tokens, environments, former_token_hashes, invitations, late_events, members, oauth_clients, oauth_codes,
  oauth_grants, oauth_requests, oauth_tokens, password_links, password_resets, personal_events, projects,
  recovery_codes, second_factors, secrets, sessions, sign_in_steps, targets, team_members, team_projects, teams, users
} from '../tables.ts'

// Rows of these tables have a MAC over their `fields`. Each `exempt` column has a note: what an attacker with write
// access to the database gains by changing the column. Tables without a MAC have such a note in tables.ts
// (`unauthenticated`). SECURITY.md lists the notes. A MAC depends on the list and order of the fields. A column that is
// added after a release is nullable, comes last and is named in `later`: the MAC leaves such a column out while it is
// null. Any other change of a list invalidates all stored MACs of the table (0047).

type Columns<T extends PgTable> = T['_']['columns']
type Name<T extends PgTable> = Extract<keyof Columns<T>, string>

interface Declaration<T extends PgTable, F extends Name<T>> {
  table: T
  key: readonly F[]
  fields: readonly F[]
  /** Fields with sealed content. The MAC covers only whether there is content. */
  presence: readonly F[]
  /** Fields of a later release. The MAC leaves them out while they are null. */
  later: readonly F[]
  exempt: Record<Exclude<Name<T>, F | 'mac'>, string>
}

const declare = <T extends PgTable, F extends Name<T>>(
  table: T, key: readonly NoInfer<F>[], fields: readonly F[], exempt: Record<Exclude<Name<T>, F | 'mac'>, string>,
  { presence = [], later = [] }: { presence?: readonly NoInfer<F>[], later?: readonly NoInfer<F>[] } = {}
): Declaration<T, F> => ({ table, key, fields, exempt, presence, later })

const SHOWN = 'Only shown'
const CREATED = { created_at: SHOWN }
// A list can be sorted by these columns, and filtered by names.
const LISTED = 'Shown; changes the order and the filtered rows of a list'
const DESCRIBED = { name: LISTED, description: SHOWN, created_at: LISTED, updated_at: SHOWN }
const BEGAN = 'Whether the level exists at a moment that is read or restored (`at`)'
const PAST = 'Which version a read or restore of a moment uses; each version is sealed for its level'
const lengthOf = (list: string) => `Shown; set lower, the list of ${list} ends earlier`

export const AUTHENTICATED = {
  users: declare(users, ['id'], [
    'id', 'email', 'email_normalized', 'name', 'password_hash', 'is_verified', 'disabled_at', 'second_factor_id'
  ], { ...CREATED, updated_at: SHOWN }),
  members: declare(members, ['organization_id', 'user_id'], ['organization_id', 'user_id', 'role', 'status'], {
    joined_at: LISTED
  }),
  invitations: declare(invitations, ['organization_id', 'id'], [
    'organization_id', 'id', 'email', 'email_normalized', 'role', 'invited_by_type', 'invited_by_id', 'invited_by_name',
    'token_hash', 'expires_at'
  ], CREATED),
  personal_events: declare(personal_events, ['id'], [
    'id', 'user_id', 'occurred_at', 'action', 'actor_type', 'ip', 'user_agent', 'details'
  ], {}),
  teams: declare(teams, ['organization_id', 'id'], ['id', 'organization_id', 'slug'], DESCRIBED),
  team_members: declare(team_members, ['organization_id', 'team_id', 'user_id'], [
    'organization_id', 'team_id', 'user_id'
  ], CREATED),
  team_projects: declare(team_projects, ['organization_id', 'team_id', 'project_id'], [
    'organization_id', 'team_id', 'project_id', 'role', 'slices'
  ], CREATED),
  sessions: declare(sessions, ['token_hash'], [
    'token_hash', 'user_id', 'browser', 'system', 'network', 'seen_at', 'expires_at'
  ], CREATED),
  password_links: declare(password_links, ['token_hash'], ['token_hash', 'user_id', 'expires_at'], CREATED),
  password_resets: declare(password_resets, ['address_hash'], [
    'address_hash', 'token_hash', 'user_id', 'expires_at'
  ], {}),
  second_factors: declare(second_factors, ['user_id'], ['user_id', 'id', 'last_step'], {
    secret: 'Wrapped by the master key for this account and second factor: another value does not open',
    ...CREATED
  }),
  recovery_codes: declare(recovery_codes, ['user_id', 'code_hash'], ['user_id', 'code_hash', 'factor_id'], CREATED),
  sign_in_steps: declare(sign_in_steps, ['token_hash'], ['token_hash', 'user_id', 'expires_at'], {
    wrong_codes:
      'Set back, an attacker with the password may try more codes in one sign-in; codes also count by account',
    ...CREATED
  }),
  api_tokens: declare(api_tokens, ['organization_id', 'id'], [
    'id', 'organization_id', 'name', 'token_hash', 'token_prefix', 'token_suffix', 'abilities', 'slices', 'expires_at',
    'created_by_type', 'created_by_id', 'created_by_name', 'user_id', 'grant_id'
  ], { last_used_at: SHOWN, created_at: LISTED, updated_at: SHOWN }),
  former_token_hashes: declare(former_token_hashes, ['organization_id', 'token_id'], [
    'organization_id', 'token_id', 'token_hash', 'expires_at'
  ], {}),
  oauth_clients: declare(oauth_clients, ['id'], [
    'id', 'name', 'redirect_uris', 'is_first_party', 'disabled_at'
  ], CREATED),
  oauth_requests: declare(oauth_requests, ['id_hash'], [
    'id_hash', 'session_hash', 'client_id', 'redirect_uri', 'state', 'code_challenge', 'scopes', 'expires_at'
  ], {}),
  oauth_grants: declare(oauth_grants, ['id'], [
    'id', 'user_id', 'client_id', 'scopes', 'expires_at', 'revoked_at'
  ], CREATED),
  oauth_codes: declare(oauth_codes, ['code_hash'], [
    'code_hash', 'grant_id', 'redirect_uri', 'code_challenge', 'scopes', 'used_at', 'expires_at'
  ], {
    wrong_verifiers: 'Set back, an attacker with the code may guess more often at the 256 random bits of its verifier'
  }),
  oauth_tokens: declare(oauth_tokens, ['id'], [
    'id', 'grant_id', 'access_hash', 'refresh_hash', 'scopes', 'access_expires_at', 'refresh_expires_at', 'used_at'
  ], CREATED),
  projects: declare(projects, ['organization_id', 'id'], [
    'id', 'organization_id', 'slug', 'secret_format', 'encryption_type', 'history_policy', 'key_version'
  ], { ...DESCRIBED, created_at: BEGAN }),
  targets: declare(targets, ['organization_id', 'id'], ['id', 'organization_id', 'project_id', 'slug'], {
    environment_count: lengthOf('environments'), secret_count: SHOWN, ...DESCRIBED, created_at: BEGAN
  }),
  environments: declare(environments, ['organization_id', 'id'], [
    'id', 'organization_id', 'project_id', 'target_id', 'slug', 'status', 'is_production'
  ], { ...DESCRIBED, created_at: BEGAN }),
  late_events: declare(late_events, ['organization_id', 'id'], ['organization_id', 'id', 'occurred_at', 'event'], {}),
  secrets: declare(secrets, ['organization_id', 'id'], [
    'id', 'organization_id', 'project_id', 'target_id', 'environment_id', 'level', 'level_id', 'revision',
    'key_version', 'sealed', 'size_bytes'
  ], {
    version: SHOWN,
    history_id:
      'Which versions the document has: another history hides them, or shows purged ones that are not deleted yet; no version opens at another level',
    version_count: lengthOf('versions'),
    version_bytes: 'The bytes that a purge or delete subtracts: set lower, the plan is full sooner; set higher, later',
    created_at: PAST,
    updated_at: PAST
  }, { presence: ['sealed'] })
} as const

export type AuthenticatedTable = keyof typeof AUTHENTICATED

type FieldsOf<N extends AuthenticatedTable> = (typeof AUTHENTICATED)[N]['fields'][number]
type ColumnsOf<N extends AuthenticatedTable> = (typeof AUTHENTICATED)[N]['table']['_']['columns']
type RowOf<N extends AuthenticatedTable> = (typeof AUTHENTICATED)[N]['table']['$inferSelect']

/** The columns that verification needs: every authenticated column, and the MAC. */
type AuthenticatedColumns<N extends AuthenticatedTable> = Pick<ColumnsOf<N>, Extract<
  FieldsOf<N> | 'mac', keyof ColumnsOf<N>>>

export type AuthenticatedRow<N extends AuthenticatedTable> = Pick<RowOf<N>, Extract<FieldsOf<N>, keyof RowOf<N>>>

export function authenticatedColumns<N extends AuthenticatedTable> (
  name: N, of: PgTable = AUTHENTICATED[name].table
): AuthenticatedColumns<N> {
  const columns = getTableColumns(of) as Record<string, PgColumn>
  const fields = [...AUTHENTICATED[name].fields, 'mac']
  return Object.fromEntries(fields.map((field) => [field, columns[field]!])) as unknown as AuthenticatedColumns<N>
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
