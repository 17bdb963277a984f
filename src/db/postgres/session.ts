/**
 * Settings for name resolution and timestamp formats. Each connection sets them, so that settings of a role or database
 * have no effect. PostgreSQL searches `pg_catalog` before this path.
 */
export const MEANING = { search_path: 'public', DateStyle: 'ISO', TimeZone: 'UTC' }

/**
 * Planner settings that prefer indexes. The planner would scan a small table sequentially, which becomes slow when the
 * table has many dead rows before a vacuum: writes took three times as long after 20 seconds. A table without a
 * suitable index is still scanned, at an artificially high cost; so JIT and parallel workers are disabled.
 */
export const BY_INDEX = { enable_seqscan: 'off', jit: 'off', max_parallel_workers_per_gather: '0' }

/**
 * Additional settings for lists: scan an index in its order. For a page in the middle of a table, the planner prefers
 * to read and sort the whole table, which is slow under load.
 */
export const WALKING = { enable_bitmapscan: 'off' }
