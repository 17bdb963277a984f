/** Each connection sets these settings, to override settings of the role or the database. */
export const MEANING = { search_path: 'public', DateStyle: 'ISO', TimeZone: 'UTC' }

/**
 * The embedded database also sets this: 0 turns off the timeout of idle transactions (changes/chain.ts). There is only
 * one session, so no other session waits for the locks of an idle transaction. The timeout would end this session.
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
