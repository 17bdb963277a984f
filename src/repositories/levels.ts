import { sql, type SQL } from 'drizzle-orm'
import type { HistoryPolicy, Managed, SecretFormat } from '../../schemas/projects.ts'
import { LEVELS, type Level, type LevelNames } from '../../schemas/secrets.ts'
import { learnHead } from '../db/chain.ts'
import { lookUp, preparedSql, requireAuthentic, tampered, type Authenticated, type Db } from '../db/database.ts'
import { headOf } from '../db/events.ts'
import { byQuestion, gather } from '../db/gather.ts'
import {
  encryption_keys, environments, organization_counters, projects, secrets, targets
} from '../db/tables.ts'
import type { Place } from '../rules/slices.ts'
import type { KeyRow } from './encryption-keys.ts'

/** The document row of a level. */
export interface SecretRow extends Authenticated<'secrets'> {
  /** False when the secret is deleted. */
  is_stored: boolean
  /** Null when the secret is deleted, and where only `revisions` were asked for. */
  sealed: Buffer | null
  version: number | null
  history_id: string
  version_count: number
  /** The revision of the newest version that is left; null without one. */
  recorded_revision: number | null
}

/** A level of the hierarchy, with what was asked for, as one statement saw it. */
export interface LevelState {
  organization_id: string
  project: Authenticated<'projects'> & {
    secret_format: SecretFormat
    encryption_type: Managed
    history_policy: HistoryPolicy
  }
  /** The active key; null unless it was asked for (`activeKeyOf`). */
  key: KeyRow | null
  target: Authenticated<'targets'> | null
  environment: Authenticated<'environments'> | null
  /** The deepest of the three, which the state is about. */
  level: Level
  level_id: string
  slug: string
  /** Documents on the way to it; none unless they were asked for. */
  secrets: SecretRow[]
  /**
   * The version id that the organization's next recorded write takes, if nobody is faster; 0 unless it was asked for.
   */
  next_version: number
  /** The bytes that the organization stores; 0 unless the version id was asked for. */
  stored_bytes: number
}

/**
 * What a look-up brings beside the place itself: the active key, the rows of the documents on the way with or without
 * what they hold, both (`readable`), or what a write needs, with the organization's next version id: for one that
 * replaces what is there (`storable`), or uses it (`writable`).
 */
export type Brings = 'place' | 'key' | 'revisions' | 'documents' | 'readable' | 'storable' | 'writable'

const FLAGS: Record<Brings, { documents: boolean, content: boolean, key: boolean, counter: boolean }> = {
  place: { documents: false, content: false, key: false, counter: false },
  key: { documents: false, content: false, key: true, counter: false },
  revisions: { documents: true, content: false, key: false, counter: false },
  documents: { documents: true, content: true, key: false, counter: false },
  readable: { documents: true, content: true, key: true, counter: false },
  storable: { documents: true, content: false, key: true, counter: true },
  writable: { documents: true, content: true, key: true, counter: true }
}

interface Row {
  question: number
  organization_id: string
  project_id: string
  project_slug: string
  secret_format: SecretFormat
  encryption_type: Managed
  history_policy: HistoryPolicy
  key_version: number
  project_mac: Buffer | null
  key_is_newest: boolean
  key_id: string | null
  key_string: Buffer | null
  data_key: Buffer | null
  key_check: Buffer | null
  salt: Buffer
  key_managed: Managed
  iterations: number
  key_created_at: string
  target_id: string | null
  target_project: string
  target_slug: string
  target_mac: Buffer | null
  environment_id: string | null
  environment_project: string
  environment_target: string
  environment_slug: string
  environment_status: string
  is_production: boolean
  environment_mac: Buffer | null
  secret_id: string | null
  secret_project: string
  secret_target: string | null
  secret_environment: string | null
  level: Level
  level_id: string
  revision: string
  secret_key_version: number
  is_stored: boolean
  sealed: Buffer | null
  size_bytes: number
  secret_mac: Buffer | null
  version: string | null
  history_id: string
  version_count: number
  recorded_revision: string | null
  next_version: string | null
  stored_bytes: string | null
  next_event: string | null
  event_head: Buffer | null
  chain_kid: string | null
}

const ASKED = sql`documents boolean, content boolean, key boolean, counter boolean`

// What was not asked for is not looked up.
const levels = (name: string, place: SQL, documents: SQL) => preparedSql<Row, { asked: string }>(name, ($) => sql`
  SELECT asked.question, p.organization_id,
    p.id AS project_id, p.slug AS project_slug, p.secret_format, p.encryption_type, p.history_policy, p.key_version,
    p.mac AS project_mac,
    k.version = p.key_version AND NOT EXISTS (
      SELECT FROM encryption_keys newer WHERE newer.organization_id = p.organization_id AND newer.project_id = p.id
        AND newer.version > p.key_version) AS key_is_newest,
    CASE WHEN asked.key THEN k.id END AS key_id, CASE WHEN asked.key THEN k.key_string END AS key_string,
    CASE WHEN asked.key THEN k.data_key END AS data_key, CASE WHEN asked.key THEN k.key_check END AS key_check,
    CASE WHEN asked.key THEN k.salt END AS salt, k.managed AS key_managed, k.iterations, k.created_at AS key_created_at,
    g.id AS target_id, g.project_id AS target_project, g.slug AS target_slug, g.mac AS target_mac,
    e.id AS environment_id, e.project_id AS environment_project, e.target_id AS environment_target,
    e.slug AS environment_slug, e.status AS environment_status, e.is_production,
    e.mac AS environment_mac,
    s.id AS secret_id, s.project_id AS secret_project, s.target_id AS secret_target,
    s.environment_id AS secret_environment, s.level, s.level_id, s.revision, s.key_version AS secret_key_version,
    s.sealed IS NOT NULL AS is_stored, CASE WHEN asked.content THEN s.sealed END AS sealed, s.size_bytes,
    s.mac AS secret_mac, s.version, s.history_id, s.version_count,
    (SELECT v.revision FROM secret_versions v
      WHERE v.organization_id = s.organization_id AND v.history_id = s.history_id ORDER BY v.id DESC
        LIMIT 1) AS recorded_revision,
    c.next_version, c.stored_bytes, c.next_event, c.event_head, c.chain_kid
  FROM jsonb_to_recordset(${$('asked')}::jsonb) AS asked (question int, organization_id char(26), ${place}
  CROSS JOIN ${lookUp('k', encryption_keys,
    sql`organization_id = p.organization_id AND project_id = p.id AND is_active`)}
  LEFT JOIN LATERAL (
    SELECT s.* FROM unnest(${documents}) AS its (id)
    CROSS JOIN ${lookUp('s', secrets,
      sql`asked.documents AND organization_id = p.organization_id AND level_id = its.id`)}
  ) AS s ON true
  LEFT JOIN ${lookUp('c', organization_counters,
    sql`asked.counter AND organization_id = p.organization_id`)} ON true`)

const bySlugs = levels('levels_by_slugs', sql`project varchar, target varchar, environment varchar, ${ASKED})
  CROSS JOIN ${lookUp('p', projects, sql`organization_id = asked.organization_id AND slug = asked.project`)}
  LEFT JOIN ${lookUp('g', targets,
    sql`organization_id = p.organization_id AND project_id = p.id AND slug = asked.target`)} ON true
  LEFT JOIN ${lookUp('e', environments,
    sql`organization_id = p.organization_id AND target_id = g.id AND slug = asked.environment`)} ON true`,
sql`ARRAY[p.id, g.id, e.id]`)

const bySecret = levels('levels_by_secret', sql`secret_id char(26), ${ASKED})
  CROSS JOIN ${lookUp('own', secrets, sql`organization_id = asked.organization_id AND id = asked.secret_id`)}
  CROSS JOIN ${lookUp('p', projects, sql`organization_id = own.organization_id AND id = own.project_id`)}
  LEFT JOIN ${lookUp('g', targets, sql`organization_id = own.organization_id AND id = own.target_id`)} ON true
  LEFT JOIN ${lookUp('e', environments,
    sql`organization_id = own.organization_id AND id = own.environment_id`)} ON true`,
sql`ARRAY[own.level_id]`)

interface Asked { organization_id: string, names: LevelNames, brings: Brings }

const findLevels = gather({
  keyOf: ({ organization_id, names: { project, target, environment }, brings }: Asked) =>
    JSON.stringify([organization_id, project, target, environment, brings]),
  find: async (db, questions) => {
    const asked = questions.map(({ organization_id, names: { project, target, environment }, brings }, question) =>
      ({ question, organization_id, project, target, environment, ...FLAGS[brings] }))
    return byQuestion(await bySlugs(db, { asked: JSON.stringify(asked) }), questions.length)
  },
  read: (db, rows, { names: { target, environment } }) => {
    const state = toState(db, rows)
    if (state === undefined || (target !== undefined && state.target === null)) return undefined
    return environment !== undefined && state.environment === null ? undefined : state
  }
})

/**
 * The level that the slugs name; undefined when a slug names nothing. Throws `integrity_error` for rows that were
 * changed.
 */
export async function findLevel (
  db: Db, organizationId: string, names: LevelNames, brings: Brings
): Promise<LevelState | undefined> {
  return findLevels(db, { organization_id: organizationId, names, brings })
}

const findLevelsOfSecrets = gather({
  keyOf: ({ organization_id, secret_id }: { organization_id: string, secret_id: string }) =>
    `${organization_id} ${secret_id}`,
  find: async (db, questions) => {
    const asked = questions.map((one, question) => ({ question, ...one, ...FLAGS.writable }))
    return byQuestion(await bySecret(db, { asked: JSON.stringify(asked) }), questions.length)
  },
  read: toState
})

/** The level of a secret, with that secret alone, for a write. */
export async function findLevelOfSecret (
  db: Db, organizationId: string, secretId: string
): Promise<LevelState | undefined> {
  return findLevelsOfSecrets(db, { organization_id: organizationId, secret_id: secretId })
}

// The one place where a level's rows are judged, before anything is told of them: what each is, where it belongs, and
// that no document is older than the newest version of it.
function toState (db: Db, rows: readonly Omit<Row, 'question'>[]): LevelState | undefined {
  const [first] = rows
  if (first === undefined) return undefined
  const { organization_id, project_id, target_id, environment_id } = first
  const project = {
    id: project_id,
    organization_id,
    slug: first.project_slug,
    secret_format: first.secret_format,
    encryption_type: first.encryption_type,
    history_policy: first.history_policy,
    key_version: first.key_version,
    mac: first.project_mac
  }
  const target = target_id === null
    ? null
    : {
        id: target_id, organization_id, project_id: first.target_project, slug: first.target_slug, mac: first.target_mac
      }
  const environment = environment_id === null
    ? null
    : {
        id: environment_id,
        organization_id,
        project_id: first.environment_project,
        target_id: first.environment_target,
        slug: first.environment_slug,
        status: first.environment_status,
        is_production: first.is_production,
        mac: first.environment_mac
      }
  const secrets = rows.flatMap((row) => toSecret(row) ?? []).sort((a, b) =>
    LEVELS.indexOf(a.level) - LEVELS.indexOf(b.level))
  requireAuthentic(db, 'projects', project)
  if (target !== null) requireAuthentic(db, 'targets', target)
  if (environment !== null) requireAuthentic(db, 'environments', environment)
  for (const secret of secrets) requireAuthentic(db, 'secrets', { ...secret, sealed: secret.is_stored })
  const isNewest = secrets.every(({ recorded_revision, revision }) => (recorded_revision ?? 0) <= revision)
  if (!isNewest || !first.key_is_newest) tampered()
  const { next_event, event_head, chain_kid } = first
  if (next_event !== null) learnHead(db, organization_id, headOf({ next_event, event_head, chain_kid }))
  const [level, deepest] = environment !== null
    ? ['environment', environment] as const
    : target !== null ? ['target', target] as const : ['project', project] as const
  return {
    organization_id,
    project,
    key: toKey(first),
    target,
    environment,
    level,
    level_id: deepest.id,
    slug: deepest.slug,
    secrets,
    next_version: Number(first.next_version),
    stored_bytes: Number(first.stored_bytes)
  }
}

function toSecret (row: Omit<Row, 'question'>): SecretRow | undefined {
  if (row.secret_id === null) return undefined
  const { organization_id, level, level_id, is_stored, sealed, size_bytes, history_id, version_count } = row
  return {
    id: row.secret_id,
    organization_id,
    project_id: row.secret_project,
    target_id: row.secret_target,
    environment_id: row.secret_environment,
    level,
    level_id,
    revision: Number(row.revision),
    key_version: row.secret_key_version,
    is_stored,
    sealed,
    size_bytes,
    mac: row.secret_mac,
    version: numberOf(row.version),
    history_id,
    version_count,
    recorded_revision: numberOf(row.recorded_revision)
  }
}

// The active key has the project's version, and was never rotated.
function toKey (row: Omit<Row, 'question'>): KeyRow | null {
  if (row.key_id === null) return null
  const { organization_id, project_id, key_version, key_string, data_key, key_check, salt, iterations } = row
  return {
    id: Number(row.key_id),
    organization_id,
    project_id,
    version: key_version,
    managed: row.key_managed,
    key_string,
    data_key,
    key_check,
    salt,
    iterations,
    is_active: true,
    created_at: new Date(row.key_created_at),
    rotated_at: null
  }
}

// The driver hands out a bigint as text.
const numberOf = (text: string | null) => text === null ? null : Number(text)

/** The active key of a level that was looked up with it. */
export function activeKeyOf ({ key }: Pick<LevelState, 'key'>): KeyRow {
  if (key === null) throw new Error('the level was looked up without its key')
  return key
}

/** The secret of the level itself, which may be deleted. */
export function ownSecret (state: LevelState): SecretRow | undefined {
  return state.secrets.find(({ level_id }) => level_id === state.level_id)
}

/** Where the state is, or one of the levels on the way there. */
export function placeOf ({ project, target, environment }: LevelState, level: Level = 'environment'): Place {
  return {
    project_id: project.id,
    target_id: level === 'project' ? null : target?.id,
    environment_id: level === 'environment' ? environment?.id : null
  }
}
