import { CallerEnded, orAgain } from '../db/caller.ts'
import { appendEvents, chainOf, guessHead, learnHead, sealEvents } from '../db/chain.ts'
import {
  codeOf, isForeignKeyViolation, isUndone, isUniqueViolation, neverSent, transaction, type Db
} from '../db/database.ts'
import { eventRow, headOf, type Head, type HeadRow } from '../db/events.ts'
import { MAX_WAIT } from '../db/guard.ts'
import { atWaitTime, waitNow } from '../db/wait-clock.ts'
import { swapSecrets, type Batch, type SecretWrite, type Swapped } from '../repositories/secrets.ts'

/**
 * What came of writes. Nothing was written where something `moved`, or where somebody `holds` what several writes would
 * have had to wait for, or one of their callers has ended: by itself, each is told what it was.
 */
export type Outcome = { outcome: 'written', next_version: number } | { outcome: 'moved' | 'held' }

/**
 * Rule 1 of the specification: a write replaces the current document and records a backup version unless `no_backup`.
 * Those of one organization are written together, all or none: versions and events are numbered in their order, and the
 * last one for a level makes its document.
 *
 * One statement that compares and swaps. It locks in the order that every write keeps (project, level, caller, counter)
 * and takes effect only if the active keys and who holds them, the levels' revisions and the organization's next
 * version id are what the caller saw when it decided and sealed, because all of it is part of what the sealed content
 * is bound to. A version that is restored still has to be in the secret's history: what was purged does not come back.
 * Whoever gains or loses a document is counted after the counter's row was taken, which makes writes of an organization
 * take turns; that row also says whether the plan has room for what they add. Version ids therefore grow in the order
 * of commits.
 *
 * The events stand behind the last one that the process knows of. Where others came between, nothing is written.
 *
 * What goes through at once shares its statement with what other organizations write at the same time, and waits for
 * nobody. What does not is sent again, by itself: it may wait there, and is told what it was.
 *
 * Throws CallerEnded when the caller of a single write has ended meanwhile.
 */
export async function writeSecrets (db: Db, next_version: number, writes: readonly SecretWrite[]): Promise<Outcome> {
  const batch = { organization_id: writes[0]!.state.organization_id, next_version, writes }
  // One whose answer is kept goes alone, for that is kept in its own transaction.
  const isKept = Boolean(writes[0]!.actor.answering)
  const shares = guessedHead(db, batch) !== undefined && bytesOf(batch) < TOGETHER.bytes && !isKept
  return (shares ? await writeFree(db, batch) : undefined) ?? writeInTurn(db, batch)
}

// Batches that wait for a statement at most: on the embedded database, during a long operation.
const MAX_WAITING = 2_000

// Statements of several organizations under way at once. While so many are, what comes gathers for the next one; more
// of them would be smaller, and each begins and commits for itself.
const MOST_UNDER_WAY = 2

/** What one statement takes; a single write may be larger, and then goes by itself. */
export const TOGETHER = { writes: 50, bytes: 512 * 1024 }

interface Waiting {
  batch: Batch
  stopWaiting: () => void
  resolve: (outcome: Outcome | undefined) => void
  reject: (error: unknown) => void
}
const gathering = new WeakMap<Db, { waiting: Waiting[], underWay: number }>()

/** What a write sends of sealed content. */
export const bytesOfWrite = ({ secret, version }: SecretWrite) =>
  (secret.sealed?.length ?? 0) + (version?.sealed.length ?? 0)
const bytesOf = ({ writes }: Batch) => writes.reduce((sum, write) => sum + bytesOfWrite(write), 0)

const eventsOf = ({ writes }: Batch) => writes.map(({ actor, event }) => eventRow(actor, event))

const guessedHead = (db: Db, { organization_id }: Batch): Head | undefined => guessHead(db, organization_id)

/**
 * Writes what nobody keeps from being written: rows that somebody holds count as moved. Undefined when nothing was
 * written, for whatever reason.
 */
async function writeFree (db: Db, batch: Batch): Promise<Outcome | undefined> {
  const gathered = gathering.get(db) ?? { waiting: [], underWay: 0 }
  gathering.set(db, gathered)
  const { waiting } = gathered
  const late = () => neverSent('Too many writes are waiting for the database')
  if (waiting.length === MAX_WAITING) throw late()
  return new Promise((resolve, reject) => {
    const own = {
      batch,
      resolve,
      reject,
      stopWaiting: atWaitTime(waitNow() + MAX_WAIT, () => {
        waiting.splice(waiting.indexOf(own), 1)
        reject(late())
      })
    }
    waiting.push(own)
    // Who comes in the same turn of the event loop goes together, as far as one statement takes them.
    if (waiting.length === 1) setImmediate(leave)
    else if (waiting.length >= TOGETHER.writes) leave()
  })

  async function leave () {
    if (waiting.length === 0 || gathered.underWay === MOST_UNDER_WAY) return
    const sent: Waiting[] = []
    for (const one of takeThoseThatFit(waiting)) {
      // It may have become unknown meanwhile where its chain ends.
      if (guessedHead(db, one.batch) === undefined) one.resolve(undefined)
      else sent.push(one)
    }
    if (waiting.length > 0) setImmediate(leave)
    if (sent.length === 0) return
    gathered.underWay++
    try {
      const written = await swapFree(db, sent.map(({ batch }) => batch))
      for (const { batch: { organization_id }, resolve } of sent) resolve(written.get(organization_id))
    } catch (error) {
      // One of them may be at fault. Where nobody knows whether it was written, none of them may be written again.
      for (const { resolve, reject } of sent) {
        if (isUndone(error)) resolve(undefined)
        else reject(error)
      }
    } finally {
      gathered.underWay--
      setImmediate(leave)
    }
  }
}

function takeThoseThatFit (waiting: Waiting[]): Waiting[] {
  const sum = { writes: 0, bytes: 0 }
  const end = waiting.findIndex(({ batch }, i) => {
    sum.writes += batch.writes.length
    sum.bytes += bytesOf(batch)
    return i > 0 && (sum.writes > TOGETHER.writes || sum.bytes > TOGETHER.bytes)
  })
  const taken = waiting.splice(0, end === -1 ? waiting.length : end)
  for (const { stopWaiting } of taken) stopWaiting()
  return taken
}

// Answers those organizations whose writes took effect. Each of them is there once, as it has one line of writes.
async function swapFree (db: Db, batches: readonly Batch[]): Promise<Map<string, Outcome>> {
  const chain = chainOf(db)
  const known = new Map(batches.map((batch) => [batch.organization_id, guessedHead(db, batch)!]))
  const sealed = sealEvents(db, known, batches.flatMap(eventsOf))
  const asked = performance.now()
  const rows = await swapSecrets(db, 'SKIP LOCKED', batches, known, sealed)
  return new Map(rows.flatMap((row): [string, Outcome][] => {
    const { organization_id, next_version } = row
    chain.told(row.clock, asked)
    if (next_version !== null) {
      chain.recorded(organization_id, sealed.after.get(organization_id)!)
      return [[organization_id, { outcome: 'written', next_version: Number(next_version) }]]
    }
    if (row.next_event !== null) {
      chain.missed(organization_id)
      learnHead(db, organization_id, headOf(row as HeadRow))
    }
    return []
  }))
}

/** Nothing was written, and nothing is to be kept of it. */
class Unwritten extends Error {
  readonly row: Swapped

  constructor (row: Swapped) {
    super('nothing was written')
    this.row = row
  }
}

/**
 * Writes of one organization by themselves. A single one waits for what somebody holds. Several wait for nothing but
 * the counter: what somebody holds is skipped, and they are not written. So no two statements that each hold several
 * rows wait for one another.
 */
async function writeInTurn (handle: Db, batch: Batch): Promise<Outcome> {
  const { organization_id, writes } = batch
  const isOne = writes.length === 1
  // The database chose this statement to lose against another one.
  const hasLost = (error: unknown) => /^(40P01|40001)$/.test(codeOf(error) ?? '')
  // It learns where the chain ends from the counter, and records then: whoever waited for a project has it by now.
  const write = async () => transaction(handle, async (db) => {
    const [row] = await swapSecrets(db, '', [batch]) as [Swapped]
    if (row.next_version === null) throw new Unwritten(row)
    await appendEvents(db, new Map([[organization_id, headOf(row as HeadRow)]]), eventsOf(batch))
    return row
  }, isOne ? writes[0]!.actor : {}).catch((error: unknown) => {
    if (error instanceof Unwritten) return error.row
    throw error
  })
  try {
    const row = isOne ? await orAgain(write, ({ callers_live }) => callers_live) : await write()
    if (row.next_version !== null) return { outcome: 'written', next_version: Number(row.next_version) }
    if (isOne && !row.callers_live) throw new CallerEnded()
    return { outcome: row.callers_live && row.projects_found ? 'moved' : 'held' }
  } catch (error) {
    // Somebody made the level's first document, or deleted its place, between our look and the statement.
    const isMoved = isUniqueViolation(error) || isForeignKeyViolation(error) || hasLost(error)
    if (isMoved) return { outcome: 'moved' }
    throw error
  }
}
