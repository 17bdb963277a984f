import { sql } from 'drizzle-orm'
import type { Database, Db } from './database.ts'
import { hasCitus, onNodes } from './citus/placement.ts'
import { queryRow } from './rows/query.ts'

/** A database that is not UTF8; `node` is set if it is the database of a node of a Citus cluster. */
export interface OtherEncoding { encoding: string, node?: string }

const NEEDED = 'UTF8'
const ENCODING = "SELECT current_setting('server_encoding')"

/**
 * Finds a database that is not UTF8, on Citus on any node. Such a database refuses or changes characters that it cannot
 * store. Skips nodes that do not respond.
 */
export async function findOtherEncoding ({ db, maintain }: Database): Promise<OtherEncoding | undefined> {
  const { encoding } = await queryRow<{ encoding: string }>(db, sql`SELECT current_setting('server_encoding') AS encoding`)
  if (encoding !== NEEDED) return { encoding }
  if (!await hasCitus(db)) return undefined
  const nodes = await maintain(async (db: Db) => {
    // A start must not wait half a minute for each node that is away.
    await db.execute(sql`SET LOCAL citus.node_connection_timeout = '2s'`)
    return onNodes(db, ENCODING)
  })
  const other = nodes.find(({ success, result }) => success && result !== NEEDED)
  return other && { encoding: other.result, node: other.node }
}
