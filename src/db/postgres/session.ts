/** Settings that each connection sets, so that settings of a role or database have no effect. */
export const MEANING = { search_path: 'public', DateStyle: 'ISO', TimeZone: 'UTC' }

/**
 * Planner settings that prefer indexes. A sequential scan of a small table with many dead rows is slow: writes took
 * three times as long after 20 seconds. A table without a suitable index is still scanned, at an artificially high
 * cost, for which JIT and parallel workers must stay off.
 */
export const BY_INDEX = { enable_seqscan: 'off', jit: 'off', max_parallel_workers_per_gather: '0' }

/** For lists: scan an index in its order, instead of reading and sorting the whole table. */
export const WALKING = { enable_bitmapscan: 'off' }
