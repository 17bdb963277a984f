import { databaseError, findAuthority, type Db } from '../../db/database.ts'
import { findDurableHeads } from '../../repositories/audit/chains.ts'
import type { Log } from '../../telemetry/log.ts'
import { createBackground, type Background } from '../jobs/background.ts'

/** Anchors are logged at the level `info`, whatever the level of the log is. */
interface AnchorLog extends Pick<Log, 'warn'> {
  child (bindings: object, options: { level: 'info' }): Pick<Log, 'info'>
}

const LOOK_EVERY = 5_000

/**
 * Writes anchors to the log: where the chain of each organization ends, after a thousand events or ten minutes, and at
 * the end. Whoever keeps the log elsewhere can tell that the end of a chain was cut off, or an older state put back.
 * Each instance writes those of the organizations in which it recorded something.
 */
export function createAnchorWorker ({ db, log }: { db: Db, log: AnchorLog }): Background {
  // Whatever else is not to be logged: these lines are kept, not read.
  const out = log.child({}, { level: 'info' })

  async function anchor (all: boolean) {
    // Without the keys, nothing was recorded.
    const chain = findAuthority(db)?.chain
    const due = chain?.due(all) ?? []
    if (chain === undefined || due.length === 0) return
    try {
      const heads = await findDurableHeads(db, due)
      for (const organization of due) {
        const head = heads.get(organization)
        const sequence = head === undefined ? Infinity : head.next_event - 1
        chain.anchored(organization, sequence)
        if (head?.event_head) out.info({ organization, sequence, mac: head.event_head.toString('hex') }, 'audit anchor')
      }
    } catch (error) {
      log.warn({ err: databaseError(error) }, 'no anchors could be written')
    }
  }

  const background = createBackground(() => anchor(false), LOOK_EVERY)
  return {
    ...background,
    async stop () {
      await background.stop()
      await anchor(true)
    }
  }
}
