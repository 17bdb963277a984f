import { createReadStream } from 'node:fs'
import type { Config } from '../config.ts'
import { IntegrityError } from '../crypto/at-rest.ts'
import { MasterKeyMissing, type Keyring } from '../crypto/keyring.ts'
import type { Db } from '../db/database.ts'
import { findBefore, findChain, listChains, readChain, type ChainRow } from '../repositories/chains.ts'
import { findServiceKey } from '../repositories/master-keys.ts'
import { findOrganization } from '../repositories/organizations.ts'
import { FIRST_CHAIN_KEY, openChainKey } from '../vault/chain.ts'
import { Anchors, ChainVerifier, type Chain, type ChainKeys, type Verified } from '../vault/verification.ts'
import { open, openKeyring, StartError, type Opened } from './open.ts'

// Chains of events, verified and exported. An export is lines of JSON: what it is, with the wrapped key; then for each
// organization what its counter says and its events; and how many there were of both.

const FORMAT = 'strongroom audit export 1'

// Characters of a line: an event has some thousand at most. A longer one is none of ours.
const MOST_LINE = 256 * 1024

/** What an operator asks for: one organization by id or slug, or all, and events of a moment or later, or all. */
interface Asked { organization?: string | undefined, since?: Date | undefined }

/**
 * Verifies chains in the database or in an export, and tells of each. Answers the exit status: 0 when all of them hold,
 * 1 when one is broken. `since` is for the database: an export says by itself from where on it is.
 */
export async function verifyAudit (
  config: Config,
  { file, anchors: log, ...asked }: Asked & { file?: string | undefined, anchors?: string | undefined },
  tell: (verified: Verified) => void | Promise<void>
): Promise<number> {
  const anchors = await readAnchors(log)
  let status = 0
  const tellAll = async (all: AsyncIterable<Verified>) => {
    for await (const verified of all) {
      if (verified.broken !== null) status = 1
      await tell(verified)
    }
  }
  if (file !== undefined) {
    await tellAll(verifyFile(openKeyring(config), file, asked, anchors))
    return status
  }
  const opened = await open(config)
  try {
    await tellAll(verifyDatabase(opened, asked, anchors))
    return status
  } finally {
    await opened.database.close()
  }
}

/** What came of a chain, in a line for the operator. */
export function describeVerified ({ organization, after, events, last, broken }: Verified): string {
  if (broken === null) {
    const range = after === null ? `up to ${last}` : `behind ${after} up to ${last}; what is before was not looked at`
    return `${organization}: ${events} events are what was recorded, ${range}\n`
  }
  const { sequence, reason, expected, actual } = broken
  return `${organization}: event ${sequence} ${reason} (expected ${expected ?? '-'}, actual ${actual ?? '-'})\n`
}

/** Verifies chains in the database, one after the other; `since` some moment behind the event before it. */
export async function * verifyDatabase (
  { database: { db }, keyring }: Opened, asked: Asked, anchors: Anchors
): AsyncGenerator<Verified> {
  const keys = keysOf(keyring, await wrappedKey(db))
  for (const organization of await organizationsOf(db, asked, anchors)) {
    // Before the end is looked up, so that it is not behind that.
    const after = asked.since && await findBefore(db, organization, asked.since)
    const { last, ...head } = await findChain(db, organization)
    const chain = { organization_id: organization, ...head, after: after ?? null }
    const verifier = new ChainVerifier(chain, keys, anchors)
    for await (const events of readChain(db, organization, after?.seq ?? null, last)) {
      if (!events.every((event) => verifier.add(event))) break
    }
    yield verifier.end()
  }
}

/** The lines of an export. `since` leaves out what happened before: what is left is verified behind that. */
export async function * exportEvents (
  { db }: Opened['database'], { organization, since }: Asked
): AsyncGenerator<string> {
  const line = (value: object) => `${JSON.stringify(value)}\n`
  const organizations = await organizationsOf(db, { organization })
  yield line({
    format: FORMAT,
    organization: organization === undefined ? null : organizations[0],
    since: since ?? null,
    key: (await wrappedKey(db)).toString('base64')
  })
  let events = 0
  for (const id of organizations) {
    const after = since && await findBefore(db, id, since)
    const { last, next_event, event_head } = await findChain(db, id)
    yield line({ organization: id, next_event, event_head: hexOf(event_head), after: toAfter(after) })
    for await (const rows of readChain(db, id, after?.seq ?? null, last)) {
      events += rows.length
      yield rows.map(({ mac, ...event }) => line({ ...event, mac: hexOf(mac) })).join('')
    }
  }
  yield line({ organizations: organizations.length, events })
}

/**
 * Verifies the chains of an export. Throws a StartError when it is none, or was made under a master key that is not at
 * hand.
 */
export async function * verifyFile (
  keyring: Keyring, file: string, asked: Asked, anchors: Anchors
): AsyncGenerator<Verified> {
  let keys: ChainKeys | undefined
  let verifier: ChainVerifier | undefined
  let isBroken = false
  let isFromFirst = false
  let exported: string | null = null
  let told: Counts | undefined
  const counted: Counts = { organizations: 0, events: 0 }
  const wanted = asked.organization?.toUpperCase()
  const seen = new Set<string>()
  const end = (): Verified[] => {
    const verified = verifier === undefined ? [] : [verifier.end()]
    verifier = undefined
    isBroken ||= verified.some(({ broken }) => broken !== null)
    return verified
  }
  for await (const text of linesOf(file)) {
    const value = readLine(text)
    if (told !== undefined) throw new StartError(`${file} goes on behind its last line`)
    if (keys === undefined) {
      if (value?.format !== FORMAT || typeof value.key !== 'string') {
        throw new StartError(`${file} is no export of the audit`)
      }
      keys = keysOf(keyring, Buffer.from(value.key, 'base64'))
      isFromFirst = value.since === null
      exported = typeof value.organization === 'string' ? value.organization : null
    } else if (value !== undefined && typeof value.organization === 'string') {
      yield * end()
      counted.organizations++
      if (wanted === undefined || wanted === value.organization) {
        seen.add(value.organization)
        // An export of everything begins at the first event, whatever somebody has written into it.
        const { after, ...chain } = value
        const from = { ...chain, after: isFromFirst ? null : after }
        verifier = new ChainVerifier(chainOf(value.organization, from), keys, anchors)
      }
    } else if (value !== undefined && typeof value.events === 'number') {
      told = { organizations: Number(value.organizations), events: value.events }
    } else {
      counted.events++
      const event = verifier && value && eventOf(value)
      if (event === undefined) verifier?.addUnreadable()
      else verifier?.add(event)
    }
  }
  yield * end()
  if (keys === undefined) throw new StartError(`${file} is empty`)
  if (told === undefined) throw new StartError(`${file} is cut off: it has no last line`)
  // Of whom an anchor tells and the export does not, everything is missing.
  for (const organization of anchors.organizations()) {
    const isExported = exported === null || exported === organization
    if (seen.has(organization) || !isExported || (wanted ?? organization) !== organization) continue
    seen.add(organization)
    isBroken = true
    yield new ChainVerifier(
      { organization_id: organization, next_event: 1, event_head: null, after: null }, keys, anchors
    ).end()
  }
  if (wanted !== undefined && seen.size === 0) {
    throw new StartError(`${file} has no events of the organization ${asked.organization}`)
  }
  // Where a chain is broken, what is missing has been told.
  if (!isBroken && (told.organizations !== counted.organizations || told.events !== counted.events)) {
    throw new StartError(
      `${file} is cut off: its last line tells of ${inWords(told)}, and there are ${inWords(counted)}`
    )
  }
}

/** What of an export its last line tells of. */
interface Counts { organizations: number, events: number }

const inWords = ({ organizations, events }: Counts) => `${events} events of ${organizations} organizations`

/** The anchors in a log: of its lines, those that say one. */
export async function readAnchors (file: string | undefined): Promise<Anchors> {
  const anchors = new Anchors()
  if (file === undefined) return anchors
  for await (const text of linesOf(file)) {
    if (!text.includes('audit anchor')) continue
    const { msg, organization, sequence, mac } = readLine(text) ?? {}
    const bytes = bytesOf(mac)
    if (msg === 'audit anchor' && typeof organization === 'string' && Number.isSafeInteger(sequence) && bytes) {
      anchors.add({ organization, sequence: sequence as number, mac: bytes })
    }
  }
  return anchors
}

async function organizationsOf (db: Db, { organization }: Asked, anchors?: Anchors): Promise<string[]> {
  // Of whom only an anchor tells, everything is missing.
  const all = [...new Set([...await listChains(db), ...anchors?.organizations() ?? []])].sort()
  if (organization === undefined) return all
  const id = (await findOrganization(db, organization))?.id ?? organization.toUpperCase()
  if (!all.includes(id)) throw new StartError(`There is no organization ${organization}`)
  return [id]
}

async function wrappedKey (db: Db): Promise<Buffer> {
  const key = await findServiceKey(db, FIRST_CHAIN_KEY)
  if (key === undefined) throw new StartError('The key that chains events is missing')
  return key.wrapped
}

function keysOf (keyring: Keyring, wrapped: Buffer): ChainKeys {
  try {
    return new Map([[FIRST_CHAIN_KEY, openChainKey(keyring, wrapped)]])
  } catch (error) {
    if (error instanceof MasterKeyMissing) {
      throw new StartError(`Master key ${error.id} is missing: the key that chains events is wrapped by it`)
    }
    if (error instanceof IntegrityError) throw new StartError('The key that chains events does not open')
    throw error
  }
}

/** The lines of a file, one at a time; what is too long comes as an empty one. */
async function * linesOf (file: string): AsyncGenerator<string> {
  let rest = ''
  let isTooLong = false
  for await (const chunk of createReadStream(file, { encoding: 'utf8', highWaterMark: 256 * 1024 })) {
    const lines = (rest + (chunk as string)).split('\n')
    rest = lines.pop()!
    if (isTooLong && lines.length > 0) {
      lines[0] = ''
      isTooLong = false
    }
    for (const line of lines) yield line.length > MOST_LINE ? '' : line
    if (rest.length > MOST_LINE) {
      rest = ''
      isTooLong = true
    }
  }
  if (rest !== '') yield rest
}

function readLine (text: string): Record<string, unknown> | undefined {
  try {
    const value: unknown = JSON.parse(text)
    return typeof value === 'object' && value !== null ? value as Record<string, unknown> : undefined
  } catch {
    return undefined
  }
}

// Whatever else is wrong with it, its MAC is not right then.
function eventOf (value: Record<string, unknown>): ChainRow | undefined {
  const { seq, occurred_at, mac } = value
  if (!Number.isSafeInteger(seq) || typeof occurred_at !== 'string') return undefined
  return { ...value, occurred_at: new Date(occurred_at), mac: bytesOf(mac) } as unknown as ChainRow
}

function chainOf (organization_id: string, { next_event, event_head, after }: Record<string, unknown>): Chain {
  const { seq, mac } = (after ?? {}) as Record<string, unknown>
  const before = bytesOf(mac)
  return {
    organization_id,
    next_event: Number(next_event),
    event_head: bytesOf(event_head),
    after: before === null ? null : { seq: Number(seq), mac: before }
  }
}

const toAfter = (after: { seq: number, mac: Buffer } | undefined) =>
  after === undefined ? null : { seq: after.seq, mac: hexOf(after.mac) }
const hexOf = (bytes: Buffer | null) => bytes === null ? null : bytes.toString('hex')
const bytesOf = (value: unknown): Buffer | null =>
  typeof value === 'string' && /^(?:[0-9a-f]{2}){1,64}$/.test(value) ? Buffer.from(value, 'hex') : null
