import { sql, type SQL } from 'drizzle-orm'
import type { AnyPgColumn, PgTable } from 'drizzle-orm/pg-core'
import { andOwn, hasOrganization } from '../postgres/engine.ts'

// A list is one JSON parameter, so the statement text does not depend on its length. Joins use the whole key, with the
// organization's id as a column of the list. If the id were a constant and statistics outdated, PostgreSQL would read
// all rows of the organization for each list entry.

const valuesOf = (type: string, values: readonly (string | number)[]): SQL =>
  sql`SELECT value::${sql.raw(type)} FROM jsonb_array_elements_text(${JSON.stringify(values)}::jsonb)`

/** Whether a unique column has one of the values. */
export const isOneOf = (column: AnyPgColumn, values: readonly (string | number)[]): SQL =>
  sql`${column} IN (${valuesOf(column.getSQLType(), values)})`

/** Whether a row belongs to the organization and has one of these ids. */
export const isOneOfOrganization = (
  table: { organization_id: AnyPgColumn, id: AnyPgColumn }, organizationId: string, ids: readonly (string | number)[]
): SQL =>
  sql`(${table.organization_id}, ${table.id}) IN (SELECT ${organizationId}::char(26), its.id
    FROM (${valuesOf(table.id.getSQLType(), ids)}) AS its (id) OFFSET 0)${
    andOwn(sql`${table.organization_id}`, organizationId)}`

// Base64, because JSON has no type for bytes.
const rowsJson = (rows: readonly object[]) => JSON.stringify(rows.map((row) =>
  Object.fromEntries(Object.entries(row).map(([name, value]) =>
    [name, Buffer.isBuffer(value) ? value.toString('base64') : value]))))

/** The rows as a table to join: `organization_id`, and `columns` (`sql\`id bigint, sealed text\``). */
export const rowsOf = (organizationId: string, rows: readonly object[], columns: SQL): SQL =>
  // `OFFSET 0` is an optimization fence, so that PostgreSQL does not treat the organization's id as a constant.
  sql`(SELECT ${organizationId}::char(26) AS organization_id, its.*
    FROM jsonb_to_recordset(${rowsJson(rows)}::jsonb) AS its (${columns}) OFFSET 0)`

/**
 * A LATERAL subquery that joins the row with this key to each row of a list. In a plain join, PostgreSQL expects a list
 * of 100 rows, and scans tables of up to some 10,000 rows even for a single look-up. `columns` are those that the
 * statement uses; Citus plans a statement with fewer columns faster.
 */
export const lookUp = (alias: string, table: PgTable, key: SQL, columns = sql`*`): SQL =>
  sql`LATERAL (SELECT ${columns} FROM ${table} WHERE ${key}${hasOrganization(table) ? andOwn(sql`organization_id`) : sql``} LIMIT 1)
    AS ${sql.raw(alias)}`

/** Whether a key column has one of the values. Not a join: PostgreSQL could use a merge join, which reads more rows. */
export const isKeyOf = (column: SQL, list: SQL): SQL => sql`${column} = ANY (ARRAY(${list}))`
