import { sql, type SQL } from 'drizzle-orm'
import type { Selection } from '../../../schemas/shapes.ts'

/** The columns by which a list is sorted and filtered. `key` is unique, so that the order of pages is stable. */
export interface Selectable { name: SQL, created_at: SQL, key: SQL, searched: readonly SQL[] }

/** Columns of a table with slugs, by its alias. */
export const named = (alias: SQL): Selectable => ({
  name: sql`${alias}.name`,
  created_at: sql`${alias}.created_at`,
  key: sql`${alias}.id`,
  searched: [sql`${alias}.name`, sql`${alias}.slug`]
})

/** The list of expressions for ORDER BY. */
export function orderOf ({ sort }: Selection, { name, created_at, key }: Selectable, byDefault: SQL): SQL {
  if (sort === undefined) return byDefault
  // The collation is explicit, so that the order does not depend on the locale of the database.
  const column = sort.endsWith('name') ? sql`lower(${name} COLLATE "C")` : created_at
  return sort.startsWith('-') ? sql`${column} DESC, ${key} DESC` : sql`${column}, ${key}`
}

export const isFiltered = ({ name, search }: Selection): boolean => name !== undefined || search !== undefined

/** The patterns for the filters of a selection; undefined without the filter. */
export const patternsOf = ({ name, search }: Selection) => ({
  name: name === undefined ? undefined : containing(name),
  search: search === undefined ? undefined : containing(search)
})

/**
 * ` AND …` for each filter of a selection; empty without filters. `pattern` returns the SQL value (usually a parameter)
 * that holds a filter's pattern.
 */
export function andSelected (
  selection: Selection, { name, searched }: Selectable, pattern: (filter: 'name' | 'search') => unknown
): SQL {
  const contains = (column: SQL, filter: 'name' | 'search') => sql`${column} ~ ${pattern(filter)}::text`
  const byName = selection.name === undefined ? sql`` : sql` AND ${contains(name, 'name')}`
  if (selection.search === undefined) return byName
  return sql`${byName} AND (${sql.join(searched.map((column) => contains(column, 'search')), sql` OR `)})`
}

/**
 * Builds a statement for each order and set of filters, on first use. Selections with the same order and filters share
 * a statement, and pass the values of their filters as parameters.
 */
export function perSelection<S> (build: (selection: Selection) => S): (selection: Selection) => S {
  const built = new Map<string, S>()
  return (selection) => {
    const { sort = '', name, search } = selection
    const key = `${sort} ${name !== undefined} ${search !== undefined}`
    const statement = built.get(key) ?? build(selection)
    built.set(key, statement)
    return statement
  }
}

/**
 * A regular expression of PostgreSQL for texts that contain this text in upper or lower case. It lists both cases of
 * each character: in a database with the locale C, ILIKE and lower() only know the letters of ASCII.
 */
function containing (text: string): string {
  return [...text].map((character) => {
    const forms = new Set([character, character.toLowerCase(), character.toUpperCase()])
    return `(?:${[...forms].map(literally).join('|')})`
  }).join('')
}

const literally = (text: string) => text.replace(/[!-/:-@[-`{-~]/g, '\\$&')
