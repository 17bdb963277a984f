import { sql, type SQL } from 'drizzle-orm'
import type { AnyPgColumn, PgTable } from 'drizzle-orm/pg-core'

// Lists in statements whose texts are the same for any number of values. A list of rows of one organization carries
// that organization, and is joined by the whole key: with the organization as a constant beside the list, and
// statistics that do not know yet how large it has become, the database reads all of its rows for each of the list.

const valuesOf = (type: string, values: readonly (string | number)[]): SQL =>
  sql`SELECT value::${sql.raw(type)} FROM jsonb_array_elements_text(${JSON.stringify(values)}::jsonb)`

/** Whether a column that is unique by itself has one of the values. */
export const isOneOf = (column: AnyPgColumn, values: readonly (string | number)[]): SQL =>
  sql`${column} IN (${valuesOf(column.getSQLType(), values)})`

/** Whether a row is the organization's, and one of those with these ids. */
export const isOneOfOrganization = (
  table: { organization_id: AnyPgColumn, id: AnyPgColumn }, organizationId: string, ids: readonly (string | number)[]
): SQL =>
  sql`(${table.organization_id}, ${table.id}) IN (SELECT ${organizationId}::char(26), its.id
    FROM (${valuesOf(table.id.getSQLType(), ids)}) AS its (id) OFFSET 0)`

// Base64 in place of bytes: the driver takes no lists of bytes.
const rowsJson = (rows: readonly object[]) => JSON.stringify(rows.map((row) =>
  Object.fromEntries(Object.entries(row).map(([name, value]) =>
    [name, Buffer.isBuffer(value) ? value.toString('base64') : value]))))

/**
 * Rows as a table to join, each with the `organization_id`.
 *
 * @param columns their other columns, as `jsonb_to_recordset` is told: `sql\`id bigint, sealed text\``
 */
export const rowsOf = (organizationId: string, rows: readonly object[], columns: SQL): SQL =>
  // Without the limit, which is none, the database would take the organization for the constant that it is.
  sql`(SELECT ${organizationId}::char(26) AS organization_id, its.*
    FROM jsonb_to_recordset(${rowsJson(rows)}::jsonb) AS its (${columns}) OFFSET 0)`

/**
 * The one row of a table that has a key, to join to the rows of a list: looked up for each of them. A plain join is
 * planned for lists of a hundred, and for what tables hold on the average: up to some ten thousand rows, all of a table
 * is read for whoever asks for one.
 *
 * @param alias what the row is called; the key may name what stands before it in the statement
 */
export const lookUp = (alias: string, table: PgTable, key: SQL): SQL =>
  sql`LATERAL (SELECT * FROM ${table} WHERE ${key} LIMIT 1) AS ${sql.raw(alias)}`

/**
 * Whether a column that is the key of its table has one of the values of a list, which a query makes: each is looked
 * up, and in the order of the key. Joined, or with IN, the list is merged with the key: every row of the table is read
 * up to the last of them, be it one.
 */
export const isKeyOf = (column: SQL, list: SQL): SQL => sql`${column} = ANY (ARRAY(${list}))`
