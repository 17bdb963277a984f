import { sql, type SQL } from 'drizzle-orm'
import type { Selection } from '../../../schemas/shapes.ts'

/** The columns by which a list is sorted and filtered. `key` is unique, so that the order of pages is stable. */
export interface Selectable { name: SQL, created_at: SQL, key: SQL, searched: readonly SQL[] }

/** Columns of a table by its alias. `searched`: default for tables with slugs. */
export const named = (alias: SQL, searched = ['name', 'slug']): Selectable => ({
  name: sql`${alias}.name`,
  created_at: sql`${alias}.created_at`,
  key: sql`${alias}.id`,
  searched: searched.map((column) => sql`${alias}.${sql.identifier(column)}`)
})

/** The list of expressions for ORDER BY. */
export function orderOf ({ sort }: Selection, { name, created_at, key }: Selectable, byDefault: SQL): SQL {
  if (sort === undefined) return byDefault
  // The collation is explicit, so that the order does not depend on the locale of the database.
  const column = sort.endsWith('name') ? sql`lower(${name} COLLATE "C")` : created_at
  return sort.startsWith('-') ? sql`${column} DESC, ${key} DESC` : sql`${column}, ${key}`
}

export const isFiltered = ({ name, search }: Selection): boolean => name !== undefined || search !== undefined

/**
 * The values for the filters of a selection, undefined without the filter: a regular expression for a short text, the
 * JSON of `foldedText` for a long one.
 */
export const patternsOf = ({ name, search }: Selection) => ({ name: patternOf(name), search: patternOf(search) })

const patternOf = (text: string | undefined): string | undefined =>
  text === undefined ? undefined : isShort(text) ? containing(text) : JSON.stringify(foldedText(text))

/**
 * ` AND …` for each filter of a selection; empty without filters. `pattern` returns the SQL value that holds the
 * pattern of a filter: a parameter of a prepared statement, by default the pattern.
 */
export function andSelected (
  selection: Selection, { name, searched }: Selectable,
  pattern: (filter: 'name' | 'search') => unknown = (filter) => patternsOf(selection)[filter]
): SQL {
  const contains = (column: SQL, filter: 'name' | 'search') => isShort(selection[filter]!)
    ? sql`${column} ~ ${pattern(filter)}::text`
    : containsFolded(column, sql`${pattern(filter)}::jsonb`)
  const byName = selection.name === undefined ? sql`` : sql` AND ${contains(name, 'name')}`
  if (selection.search === undefined) return byName
  return sql`${byName} AND (${sql.join(searched.map((column) => contains(column, 'search')), sql` OR `)})`
}

/**
 * Builds a statement for each order and set of filters, on first use. Selections with the same order and filters, of
 * texts that are both short or both long, share a statement, and pass the values of their filters as parameters.
 */
export function perSelection<S> (build: (selection: Selection) => S): (selection: Selection) => S {
  const built = new Map<string, S>()
  return (selection) => {
    const { sort = '', name, search } = selection
    const key = `${sort} ${kindOf(name)} ${kindOf(search)}`
    const statement = built.get(key) ?? build(selection)
    built.set(key, statement)
    return statement
  }
}

const kindOf = (text: string | undefined) => text === undefined ? 'none' : isShort(text) ? 'short' : 'long'

// The time of a regular expression grows with the square of its length. A name can have 255 characters, and an
// organization 10,000 names: a pattern of 100 characters would occupy a connection for a second.
const MAX_PATTERN = 32

/** Whether a regular expression finds the text in a few microseconds per name. */
const isShort = (text: string): boolean => [...text].reduce((length, character) =>
  length + Math.max(...formsOf(character).map((form) => form.length)), 0) <= MAX_PATTERN

/** A character, in lower and in upper case, which can have several characters. */
const formsOf = (character: string): string[] =>
  [...new Set([character, character.toLowerCase(), character.toUpperCase()])]

/**
 * A regular expression of PostgreSQL for texts that contain this text in upper or lower case. It lists both cases of
 * each character: in a database with the locale C, ILIKE and lower() only know the letters of ASCII.
 */
const containing = (text: string): string =>
  [...text].map((character) => `(?:${formsOf(character).map(literally).join('|')})`).join('')

const literally = (text: string) => text.replace(/[!-/:-@[-`{-~]/g, '\\$&')

// Maximum number of letters beyond ASCII that a long text also finds in the other case. Each letter takes time for each
// character of a name.
const MAX_LETTERS = 40

/**
 * A text in lower case, for `containsFolded`, and before it the letters beyond ASCII to replace in a name, and those to
 * replace them by. Case forms of several characters, such as SS, are not found.
 */
function foldedText (text: string): [from: string, to: string, text: string] {
  const lower = new Map<string, string>()
  for (const character of new Set(text)) {
    // By way of the upper case, so that the two forms of a sigma are one letter.
    const usual = [character.toUpperCase().toLowerCase(), character.toLowerCase()].find(isOne)
    if (usual === undefined) continue
    const forms = [...formsOf(character), usual].filter(isOne)
    // PostgreSQL gives the letters of ASCII in lower case.
    const to = forms.find((form) => form <= '\x7f')?.toLowerCase() ?? usual
    for (const form of forms) if (form > '\x7f' && form !== to && lower.size < MAX_LETTERS) lower.set(form, to)
  }
  const folded = [...text].map((character) =>
    lower.get(character) ?? (character > '\x7f' ? character : character.toLowerCase()))
  return [[...lower.keys()].join(''), [...lower.values()].join(''), folded.join('')]
}

const isOne = (form: string) => [...form].length === 1

/** Whether a column contains a text of `foldedText`, which is a value of type jsonb. */
const containsFolded = (column: SQL, text: SQL): SQL =>
  sql`strpos(translate(lower(${column} COLLATE "C"), ${text} ->> 0, ${text} ->> 1), ${text} ->> 2) > 0`
