import { databaseError, findAuthority, type Db } from '../db/database.ts'
import { findDurableHeads } from '../repositories/audit/chains.ts'
import type { Log } from '../telemetry/log.ts'
import { createBackground, type Background } from './background.ts'

/** A log with a child that writes at level `info` even if the log itself has a higher level. */
interface AnchorLog extends Pick<Log, 'warn'> {
  child (bindings: object, options: { level: 'info' }): Pick<Log, 'info'>
}

const CHECK_INTERVAL_MS = 5_000

/**
 * Writes anchors to the log. An anchor is the end of an organization's audit chain. An anchor is written after a
 * thousand events, after ten minutes, and on shutdown. A comparison with archived anchors reveals a truncated chain or
 * a restored older state. Each instance writes anchors for the events that it recorded.
 */
export function createAnchorWorker ({ db, log }: { db: Db, log: AnchorLog }): Background {
  // Writes anchors at any log level, because they are archived.
  const out = log.child({}, { level: 'info' })

  async function anchor (all: boolean) {
    // No events are recorded until the keys are loaded.
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

  const background = createBackground(() => anchor(false), CHECK_INTERVAL_MS)
  return {
    ...background,
    async stop () {
      await background.stop()
      await anchor(true)
    }
  }
}
