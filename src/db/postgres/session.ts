/** Each connection sets these, to override settings of the role or the database. */
export const MEANING = { search_path: 'public', DateStyle: 'ISO', TimeZone: 'UTC' }

/**
 * The embedded database also sets this. No other session waits for the locks of a transaction, so a transaction without
 * statements, of a process that hangs, needs no timeout. The timeout would end the only session.
 */
export const ONLY_SESSION = { 'strongroom.idle_timeout': '0' }

/**
 * Planner settings that prefer indexes. A sequential scan of a small table with many dead rows is slow: writes took
 * three times as long after 20 seconds. A table without a suitable index is still scanned. Its artificially high cost
 * would enable JIT and parallel workers, so these are off.
 */
export const BY_INDEX = { enable_seqscan: 'off', jit: 'off', max_parallel_workers_per_gather: '0' }

/** For lists: read rows in index order, instead of reading and sorting all rows. */
export const WALKING = { enable_bitmapscan: 'off' }
