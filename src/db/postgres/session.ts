/**
 * Each connection sets these settings, to override settings of the server, the database and the role. They decide what
 * a name or a literal of a statement means, which snapshot a statement reads, and the text form of a value: with
 * `bytea_output = escape`, the driver would decode other bytes, and with `extra_float_digits = -5`, other numbers. The
 * driver sets `client_encoding`. The names and values have the form of the view pg_settings.
 */
export const MEANING = {
  search_path: 'public',
  default_transaction_isolation: 'read committed' as const,
  bytea_output: 'hex',
  extra_float_digits: '1',
  DateStyle: 'ISO, MDY',
  IntervalStyle: 'postgres',
  TimeZone: 'UTC',
  timezone_abbreviations: 'Default',
  lc_monetary: 'C',
  lc_numeric: 'C',
  lc_time: 'C',
  xmlbinary: 'base64',
  xmloption: 'content',
  quote_all_identifiers: 'off',
  array_nulls: 'on',
  backslash_quote: 'safe_encoding',
  standard_conforming_strings: 'on',
  transform_null_equals: 'off'
}

// An installation may use another schema.
const CHOSEN = ['search_path']
const FIXED = [...Object.keys(MEANING), 'client_encoding'].filter((name) => !CHOSEN.includes(name))
  .map((name) => name.toLowerCase())

/**
 * Whether a parameter of DATABASE_URL sets a setting that the connection sets itself. The driver would send the
 * parameter after the settings of the connection, so that the parameter takes effect.
 */
export const isFixed = (parameter: string): boolean => FIXED.includes(parameter.toLowerCase())

/**
 * The embedded database also sets this: 0 turns off the timeout of idle transactions (changes/counter.ts). There is
 * only one session, so no other session waits for the locks of an idle transaction. The timeout would end this session.
 */
export const ONLY_SESSION = { 'strongroom.idle_timeout': '0' }

/**
 * Planner settings that prefer indexes. A sequential scan of a small table with many dead rows is slow: in a test,
 * writes took three times as long after 20 seconds. A table without a suitable index is still scanned. JIT and parallel
 * workers are off, because the artificially high cost of such a scan would enable them.
 */
export const BY_INDEX = { enable_seqscan: 'off', jit: 'off', max_parallel_workers_per_gather: '0' }

/** For lists: read rows in index order, instead of reading and sorting all rows. */
export const WALKING = { enable_bitmapscan: 'off' }
