import { sql } from 'drizzle-orm'
import type { Db } from '../postgres/handle.ts'
import { BY_INDEX, MEANING } from '../postgres/session.ts'
import { queryRow, queryRows } from '../rows/query.ts'

/**
 * Reference tables, of which each node has a copy: rows of organizations refer to these tables, or the service finds
 * the organization of a request in them.
 */
export const REFERENCE = ['plans', 'plan_prices', 'coupons', 'users', 'oauth_clients', 'oauth_grants', 'organizations']
/** All other distributed tables are colocated with this table: the rows of an organization are on the same node. */
export const COLOCATED_WITH = 'organization_counters'
// Tables with a column `organization_id` that stay on the coordinator: a reserved slug is looked up without its
// organization, and the late events of a person in several organizations are inserted by one statement.
const LOCAL = ['former_slugs', 'late_events']

/** A node of the cluster is missing, or does not have the settings that the service needs. */
export class CitusError extends Error {
  override name = 'CitusError'
}

/** Whether the database has the extension `citus`. */
export async function hasCitus (db: Db): Promise<boolean> {
  const { has_citus } = await queryRow<{ has_citus: boolean }>(db, sql`
    SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'citus') AS has_citus`)
  return has_citus
}

/** Whether this node of a Citus cluster is the coordinator. */
export async function isCoordinator (db: Db): Promise<boolean> {
  const { is_coordinator } = await queryRow<{ is_coordinator: boolean }>(db, sql`
    SELECT groupid = 0 AS is_coordinator FROM pg_dist_local_group`)
  return is_coordinator
}

/** Throws CitusError on a worker of a Citus cluster, where the schema cannot be changed. */
export async function requireCoordinator (db: Db): Promise<void> {
  if (!await hasCitus(db) || await isCoordinator(db)) return
  throw new CitusError('The schema has to be changed: run `migrate` with the DATABASE_URL of the coordinator')
}

/** What was done on a Citus cluster. */
export interface Placed {
  /** The number of tables that were placed. */
  tables: number
  /** The nodes, as `host:port`, on which settings of the database were set. */
  nodes: string[]
}

/** Adds two results. */
export const mergePlaced = (one: Placed, other: Placed): Placed =>
  ({ tables: one.tables + other.tables, nodes: [...new Set([...one.nodes, ...other.nodes])] })

export const NOTHING_PLACED: Placed = { tables: 0, nodes: [] }

/**
 * Places tables on the nodes of a Citus cluster. Distributes tables with a column `organization_id` by this column, and
 * copies reference tables to each node. Other tables stay on the coordinator, where each node can use them. Does not
 * change tables that are placed already. Runs in the caller's transaction. Before it places tables, it sets the
 * settings of the nodes (`setDefaults`).
 *
 * @throws CitusError if a node has a wrong setting, or if this node is not the coordinator and tables must be placed
 */
export async function placeTables (db: Db): Promise<Placed> {
  const missing = await queryRows<Table>(db, sql`
    SELECT CASE n.nspname WHEN 'public' THEN c.relname ELSE n.nspname || '.' || c.relname END AS name,
      EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'organization_id') AS has_organization
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname IN ('public', 'drizzle') AND c.relkind = 'r'
      AND NOT EXISTS (SELECT FROM pg_dist_partition p WHERE p.logicalrelid = c.oid AND NOT p.autoconverted)
      AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = c.oid AND d.deptype = 'e')`)
  if (missing.length === 0) return NOTHING_PLACED
  await requireCoordinator(db)
  const nodes = await setDefaults(db)
  await place(db, missing)
  return { tables: missing.length, nodes }
}

/** A table, and whether it has a column `organization_id`. */
export interface Table { name: string, has_organization: boolean }

export type Placement = 'reference' | 'distributed' | 'local'

/** Where a table is placed. */
export function placementOf ({ name, has_organization }: Table): Placement {
  if (REFERENCE.includes(name)) return 'reference'
  return has_organization && !LOCAL.includes(name) ? 'distributed' : 'local'
}

async function place (db: Db, missing: readonly Table[]) {
  // Drops the foreign keys and adds them afterwards: with foreign keys, Citus converts connected tables itself, and the
  // placement fails.
  const names = JSON.stringify(missing.map(({ name }) => name))
  const keys = await queryRows<Record<'table' | 'name' | 'definition', string>>(db, sql`
    WITH placed AS (SELECT value::regclass AS id FROM jsonb_array_elements_text(${names}::jsonb))
    SELECT conrelid::regclass::text AS table, quote_ident(conname) AS name, pg_get_constraintdef(oid) AS definition
    FROM pg_constraint WHERE contype = 'f' AND connamespace = 'public'::regnamespace
      AND (conrelid IN (SELECT id FROM placed) OR confrelid IN (SELECT id FROM placed))`)
  await db.execute(sql`SET LOCAL citus.multi_shard_modify_mode = 'sequential'`)
  for (const { table, name } of keys) await db.execute(sql.raw(`ALTER TABLE ${table} DROP CONSTRAINT ${name}`))
  const of = (placement: Placement) =>
    missing.filter((table) => placementOf(table) === placement).map(({ name }) => name)
  for (const name of of('reference')) await db.execute(sql`SELECT create_reference_table(${name})`)
  for (const name of of('distributed').toSorted((a, b) => Number(b === COLOCATED_WITH) - Number(a === COLOCATED_WITH))) {
    const beside = name === COLOCATED_WITH ? 'none' : COLOCATED_WITH
    await db.execute(sql`SELECT create_distributed_table(${name}, 'organization_id', colocate_with => ${beside})`)
  }
  for (const name of of('local')) await db.execute(sql`SELECT citus_add_local_table_to_metadata(${name})`)
  for (const { table, name, definition } of keys) {
    await db.execute(sql.raw(`ALTER TABLE ${table} ADD CONSTRAINT ${name} ${definition}`))
  }
}

// Settings that each node needs, and why. They can only be set by a superuser or in postgresql.conf.
const NEEDED = [
  {
    name: 'citus.enable_unsafe_triggers',
    isRight: (value: string) => value === 'on',
    line: 'citus.enable_unsafe_triggers = on',
    why: 'triggers protect keys and audit events'
  },
  {
    name: 'max_prepared_transactions',
    isRight: (value: string) => Number(value) > 0,
    line: 'max_prepared_transactions to the number of max_connections',
    why: 'changes on several nodes are two-phase commits'
  },
  {
    name: 'citus.recover_2pc_interval',
    isRight: (value: string) => /^(?:\d{1,4}ms|[1-5]s)$/.test(value),
    line: 'citus.recover_2pc_interval = 2s',
    why: 'a change that a failed node missed takes effect and releases its locks only then'
  }
]

// With `replica`, a node neither checks foreign keys nor deletes by them, and audit events can be changed.
const TRIGGERS = 'session_replication_role'

// Defaults of the connections between nodes, which do not get the settings of the client's connection.
const DEFAULTS: Record<string, string> = {
  ...MEANING,
  ...BY_INDEX,
  // The same as on connections of the service to the coordinator (database.ts).
  lock_timeout: '1200',
  // Ends a transaction on a node if the connection to the coordinator is lost without being closed. Long enough for the
  // pauses of a backup.
  idle_in_transaction_session_timeout: '600000',
  // A transaction uses one connection to each node. So a query over several organizations can precede a change of a
  // reference table.
  'citus.multi_shard_modify_mode': 'sequential',
  // Sends SET LOCAL to the nodes, where triggers read the setting.
  'citus.propagate_set_commands': 'local'
}

export interface NodeResult { node: string, success: boolean, result: string }

/**
 * Runs a statement on a new connection to each node, outside of the caller's transaction. `success` is false for a node
 * that does not respond, and `result` is then the reason.
 */
export async function onNodes (db: Db, statement: string): Promise<NodeResult[]> {
  return queryRows<NodeResult & Record<string, unknown>>(db, sql`
    SELECT node.nodename || ':' || node.nodeport AS node, its.success, its.result
    FROM run_command_on_all_nodes(${statement}, parallel => false) AS its JOIN pg_dist_node AS node USING (nodeid)
    ORDER BY node.groupid`)
}

/** Runs a statement as `onNodes`, and leaves out nodes that do not respond within two seconds. In a transaction. */
export async function onNodesThatRespond (db: Db, statement: string): Promise<NodeResult[]> {
  // A start must not wait half a minute for each node that is away.
  await db.execute(sql`SET LOCAL citus.node_connection_timeout = '2s'`)
  const answers = await onNodes(db, statement)
  return answers.filter(({ success }) => success)
}

async function checkNodes (db: Db) {
  const { workers, has_coordinator } = await queryRow<{ workers: number, has_coordinator: boolean }>(db, sql`
    SELECT (SELECT count(*)::int FROM pg_dist_node WHERE noderole = 'primary' AND shouldhaveshards) AS workers,
      EXISTS (SELECT FROM pg_dist_node WHERE groupid = 0) AS has_coordinator`)
  if (!has_coordinator) {
    throw new CitusError('The nodes do not know the coordinator: run citus_set_coordinator_host on the coordinator')
  }
  if (workers === 0) throw new CitusError('The cluster has no worker: run citus_add_node on the coordinator')
  for (const { name, isRight, line, why } of NEEDED) {
    for (const { node, success, result } of await onNodes(db, `SELECT current_setting('${name}')`)) {
      if (!success) throw new CitusError(`${node} does not respond: ${result}`)
      if (!isRight(result)) throw new CitusError(`${node}: set ${line} in postgresql.conf: ${why} (now: ${result})`)
    }
  }
  for (const { node, result } of await onNodes(db, `SELECT current_setting('${TRIGGERS}')`)) requireTriggers(node, result)
}

// A setting of the role comes before a default of the database, and a setting of the role in this database before both.
// So these are set for the role of the service in its database, too.
const OF_ROLE = Object.keys(MEANING)

const SETTINGS_OF_ROLE = `
  SELECT coalesce(json_agg(split_part(setting, '=', 1)), '[]') FROM pg_db_role_setting
    JOIN pg_roles r ON r.oid = setrole JOIN pg_database d ON d.oid = setdatabase CROSS JOIN unnest(setconfig) AS setting
  WHERE rolname = current_user AND datname = current_database()`

// For each node, the settings that are not set, or whose values differ from `DEFAULTS`, with their present values.
async function findUnset (db: Db): Promise<{ node: string, wrong: [name: string, value: string][] }[]> {
  const names = Object.keys(DEFAULTS).map((name) => `'${name}'`).join()
  const answers = await onNodes(db, `SELECT json_build_array(
    (SELECT json_object_agg(name, setting) FROM pg_settings WHERE name IN (${names})), (${SETTINGS_OF_ROLE}))`)
  return answers.flatMap(({ node, success, result }) => {
    if (!success) throw new CitusError(`${node}: the settings cannot be read: ${result}`)
    const [settings, ofRole] = JSON.parse(result) as [Record<string, string>, string[]]
    const isRight = (name: string) =>
      settings[name] === DEFAULTS[name] && (!OF_ROLE.includes(name) || ofRole.includes(name))
    const wrong = Object.keys(DEFAULTS).filter((name) => !isRight(name))
      .map((name): [string, string] => [name, settings[name] ?? 'unknown'])
    return wrong.length > 0 ? [{ node, wrong }] : []
  })
}

/**
 * Checks the settings that change what a node reads (`MEANING`), and whether the node runs triggers. Nodes that do not
 * respond are not checked. In a transaction.
 *
 * @throws CitusError if a node has a wrong setting
 */
export async function requireMeaning (db: Db): Promise<void> {
  const names = [TRIGGERS, ...OF_ROLE].map((name) => `'${name}'`).join()
  const answers = await onNodesThatRespond(db,
    `SELECT json_object_agg(name, setting) FROM pg_settings WHERE name IN (${names})`)
  for (const { node, result } of answers) {
    const settings = JSON.parse(result) as Record<string, string>
    requireTriggers(node, settings[TRIGGERS])
    const wrong = OF_ROLE.find((name) => settings[name] !== DEFAULTS[name])
    if (wrong === undefined) continue
    throw new CitusError(`${node}: ${wrong} is ${settings[wrong]}, but has to be ${DEFAULTS[wrong]}: ` +
      'run `migrate` with the DATABASE_URL of the coordinator, which sets it')
  }
}

function requireTriggers (node: string, value: string | undefined) {
  if (value !== 'replica') return
  throw new CitusError(`${node}: ${TRIGGERS} is replica, which turns off foreign keys: a superuser has to run ` +
    `ALTER ROLE … RESET ${TRIGGERS} on this node, or ALTER DATABASE … RESET, where it is set`)
}

const inDatabase = (altered: string, names: readonly string[]) => names.map((name) =>
  `EXECUTE format('ALTER ${altered} %I SET ${name} = %L', current_database(), '${DEFAULTS[name]}');`)

/**
 * Checks the settings of each node of a Citus cluster, and sets missing `DEFAULTS` for this database: a copy of the
 * database and a node that was added later lack these settings. Must run on the coordinator. Returns the nodes that
 * lacked a setting.
 *
 * @throws CitusError if a node does not respond or has a wrong setting
 */
export async function setDefaults (db: Db): Promise<string[]> {
  await checkNodes(db)
  const unset = await findUnset(db)
  if (unset.length === 0) return []
  // Sets the defaults on each node separately, because Citus does not propagate ALTER DATABASE for a copied database.
  const answers = await onNodes(db, `DO $do$ BEGIN
    PERFORM set_config('citus.enable_ddl_propagation', 'off', true);
    ${[...inDatabase('DATABASE', Object.keys(DEFAULTS)), ...inDatabase('ROLE CURRENT_USER IN DATABASE', OF_ROLE)].join('\n')}
    END $do$`)
  for (const { node, success, result } of answers) {
    if (!success) throw new CitusError(`${node}: the settings cannot be set: ${result}`)
  }
  const [still] = await findUnset(db)
  if (still !== undefined) {
    const [name, value] = still.wrong[0]!
    throw new CitusError(
      `${still.node}: ${name} is ${value}, but has to be ${DEFAULTS[name]}: reset this setting of the role (ALTER ROLE)`)
  }
  return unset.map(({ node }) => node)
}

const IS_FOREIGN_KEY = /^\s*ALTER TABLE\b[\s\S]*\bADD CONSTRAINT\b[\s\S]*\bFOREIGN KEY\b/i

/**
 * Runs the statements of a migration in the caller's transaction. On Citus, places the new tables before the statements
 * that add a foreign key to an existing table, because a table that is not placed yet cannot refer to a placed one.
 */
export async function runStatements (
  db: Db, statements: readonly string[], onStatement: () => void = () => {}
): Promise<Placed> {
  const isCitus = await hasCitus(db)
  const isLate = (statement: string) => isCitus && IS_FOREIGN_KEY.test(statement)
  const run = async (statement: string) => {
    await db.execute(sql.raw(statement))
    onStatement()
  }
  for (const statement of statements.filter((one) => !isLate(one))) await run(statement)
  if (!isCitus) return NOTHING_PLACED
  const placed = await placeTables(db)
  for (const statement of statements.filter(isLate)) await run(statement)
  return placed
}
