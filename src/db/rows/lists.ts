import { sql, type SQL } from 'drizzle-orm'
import type { AnyPgColumn, PgTable } from 'drizzle-orm/pg-core'

// Lists as parameters, in statements whose texts do not depend on the number of values. A list contains the id of the
// organization and is joined by the whole key. With the id as a constant and outdated statistics, PostgreSQL would read
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
    FROM (${valuesOf(table.id.getSQLType(), ids)}) AS its (id) OFFSET 0)`

// Base64, because the driver does not accept lists of bytes.
const rowsJson = (rows: readonly object[]) => JSON.stringify(rows.map((row) =>
  Object.fromEntries(Object.entries(row).map(([name, value]) =>
    [name, Buffer.isBuffer(value) ? value.toString('base64') : value]))))

/** Rows as a table to join, each with the `organization_id` and `columns` (`sql\`id bigint, sealed text\``). */
export const rowsOf = (organizationId: string, rows: readonly object[], columns: SQL): SQL =>
  // `OFFSET 0` is an optimization fence: without it PostgreSQL treats the organization as a constant.
  sql`(SELECT ${organizationId}::char(26) AS organization_id, its.*
    FROM jsonb_to_recordset(${rowsJson(rows)}::jsonb) AS its (${columns}) OFFSET 0)`

/**
 * Joins the one row with this key to each row of a list (a LATERAL subquery). As a plain join PostgreSQL would plan it
 * for a list of a hundred rows, and scan tables of up to some ten thousand rows for a single lookup.
 */
export const lookUp = (alias: string, table: PgTable, key: SQL): SQL =>
  sql`LATERAL (SELECT * FROM ${table} WHERE ${key} LIMIT 1) AS ${sql.raw(alias)}`

/** Whether a key column has one of the values. A join or IN would read every row up to the last value (merge join). */
export const isKeyOf = (column: SQL, list: SQL): SQL => sql`${column} = ANY (ARRAY(${list}))`
