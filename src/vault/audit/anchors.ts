import { databaseError, findAuthority, type Db } from '../../db/database.ts'
import { findDurableHeads } from '../../repositories/audit/chains.ts'
import type { Log } from '../../telemetry/log.ts'
import { createBackground, type Background } from '../jobs/background.ts'

/** A log that can write at level `info` even if it is set to a higher level. */
interface AnchorLog extends Pick<Log, 'warn'> {
  child (bindings: object, options: { level: 'info' }): Pick<Log, 'info'>
}

const LOOK_EVERY = 5_000

/**
 * Writes anchors to the log: the end of each organization's chain, after a thousand events or ten minutes, and on
 * shutdown. A copy of the log reveals a truncated chain or a restored older state. Each instance anchors the events
 * that it recorded.
 */
export function createAnchorWorker ({ db, log }: { db: Db, log: AnchorLog }): Background {
  // Anchors are archived, so they are written whatever the log level is.
  const out = log.child({}, { level: 'info' })

  async function anchor (all: boolean) {
    // Without the keys, no event was recorded.
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
