import { stat } from 'node:fs/promises'
import { PassThrough } from 'node:stream'
import { StringDecoder } from 'node:string_decoder'
import { change } from '../../changes/change.ts'
import { loadConfig, type Config } from '../../config.ts'
import { IntegrityError } from '../../crypto/at-rest.ts'
import { MasterKeyMissing, type Keyring } from '../../crypto/keyring.ts'
import { CallerEnded } from '../../db/rows/caller.ts'
import { DatabaseUnavailable, DirectoryLocked, isLockTimeout, type Db } from '../../db/database.ts'
import type { ChainKeyRow } from '../../db/events.ts'
import { operatorOf } from '../../repositories/audit/audit.ts'
import { countEvents, findBefore, findChain, listChains, readChain, type ChainRow } from '../../repositories/audit/chains.ts'
import { findServiceKey, listCanaries } from '../../repositories/keys/master-keys.ts'
import { findOrganization } from '../../repositories/levels/organizations.ts'
import { parseTimestamp } from '../../rules/formats/timestamps.ts'
import {
  exportMac, FIRST_CHAIN_KEY, handOverChain, openChainKey, openFirstKey, type ExportedChain
} from '../../vault/audit/chain.ts'
import { Anchors, ChainVerifier, type ChainKey, type ChainKeys, type Verified } from '../../vault/audit/verification.ts'
import { lockCurrentCanary } from '../../vault/keys/master-keys.ts'
import { command, verbs, withOpened, type Noun } from '../common/noun.ts'
import { orUndecided, requireDatabase, requireKeyFolder } from '../common/data-dir.ts'
import { lineOf, refuse, StartError } from '../common/command-errors.ts'
import { sendCommand } from '../common/in-service.ts'
import { open, openKeyring, type Opened } from '../common/open.ts'
import { advancing, NO_PROGRESS, withProgress } from '../common/progress.ts'
import { retryDatabase } from '../common/retry.ts'
import {
  readChunks, rowOf, warn, withTerminal, write, writeJson, type Progress, type Terminal
} from '../common/stdio.ts'
import { fail, FLAG, TEXT, timeOf } from '../common/words.ts'

// An export is JSON Lines. The first line contains the wrapped first chain key. For each organization, lines with its
// other chain keys follow, then one line with the start and the end of its exported chain and a MAC, then its events.
// The last line has the numbers of organizations and events.

const FORMAT = 'strongroom audit export 2'

// An exported event has a few thousand characters at most.
const MAX_LINE_LENGTH = 256 * 1024

export const noun: Noun = {
  help: `  audit verify [--organization ID] [--since TIME | --file EXPORT] [--anchors LOG] [--json]
                                          verify the audit log in the database, or in an export without a database
  audit export [--organization ID] [--since TIME] [--json]
                                          print the audit log as JSON Lines that can be verified offline
  audit rotate-key --organization ID | --all
                                          use a new chain key for later events
`,
  isOfInstallation: true,

  run: verbs('audit', {
    verify: command({
      organization: TEXT, since: TEXT, file: TEXT, anchors: TEXT, json: FLAG
    }, async ({ since: text, json, ...filter }, env) => {
      const since = timeOf('--since', text)
      if (since !== undefined && filter.file !== undefined) {
        fail('--since cannot be combined with --file: an export states its own start')
      }
      const left = 'The verification is incomplete. Nothing was changed.'
      return orUndecided(() => withProgress({ json, left }, async (progress) => {
        let status = 0
        for await (const verified of verifyAudit(loadConfig(env), { ...filter, since }, progress)) {
          if (verified.broken !== null) status = 1
          await (json ? writeJson(verified) : write(`${describeVerified(verified)}\n`))
        }
        return status
      }))
    }),

    export: command({ organization: TEXT, since: TEXT, json: FLAG }, async ({ organization, json, ...given }, env) => {
      const since = timeOf('--since', given.since)
      const left = 'The export is incomplete: its last line is missing, so `audit verify --file` refuses it.'
      return withProgress({ json, isData: true, left }, (progress) => withOpened(env, async (opened) => {
        for await (const lines of exportEvents(opened, { organization, since }, progress)) await write(lines)
      }))
    }),

    'rotate-key': command({ organization: TEXT, all: FLAG }, async ({ organization, all }, env) => {
      if ((organization === undefined) === (all !== true)) {
        fail('audit rotate-key needs --organization ID, or --all')
      }
      return withOpened(env, async (opened) => {
        let status = 0
        for await (const { line, isDone } of rotateChainKeys(opened, organization)) {
          if (isDone) await write(`${line}\n`)
          else {
            status = 1
            warn(line)
          }
        }
        return status
      })
    })
  })
}

/** Selects one organization by id, in the database also by slug, and events since a time. Default: everything. */
interface Filter { organization?: string | undefined, since?: Date | undefined }

/** Verifies the chains in the database, or in an export if `file` is set. `since` has no effect on an export. */
export async function * verifyAudit (
  config: Config,
  { file, anchors: log, ...filter }: Filter & { file?: string | undefined, anchors?: string | undefined },
  progress = NO_PROGRESS
): AsyncGenerator<Verified> {
  if (file === undefined) requireDatabase(config)
  else requireKeyFolder(config)
  const anchors = await readAnchors(log)
  if (file !== undefined) {
    yield * verifyFile(await openKeyring(config), file, filter, anchors, progress)
    return
  }
  const opened = await open(config).catch((error: unknown) => {
    if (error instanceof DirectoryLocked) return error
    throw error
  })
  if (opened instanceof DirectoryLocked) {
    // An export of one organization is refused if only an anchor names the organization: its events are missing.
    const isAnchored = anchors.organizations().includes(filter.organization?.toUpperCase() ?? '')
    const chunks = exportOfService(opened, isAnchored ? { since: filter.since } : filter, progress)
    const wanted = isAnchored ? filter : {}
    yield * verifyExport(await openKeyring(config), 'The export of the service', chunks, wanted, anchors)
    return
  }
  try {
    yield * verifyDatabase(opened, filter, anchors, progress)
  } finally {
    await opened.database.close()
  }
}

/**
 * Yields an export by the service that has the embedded database open. The process of the command verifies the export:
 * it can read the anchors, and costs the service less time.
 */
async function * exportOfService (
  locked: DirectoryLocked, { organization, since }: Filter, progress: Progress
): AsyncGenerator<Buffer> {
  const out = new PassThrough()
  const problems: string[] = []
  const terminal: Terminal = {
    write: (chunk) => new Promise((resolve, reject) => {
      out.write(chunk, (error) => error ? reject(error) : resolve())
    }),
    warn: (line) => { problems.push(line) },
    progress: () => ({ ...progress, begin: (_step, unit, total) => progress.begin('Verifying', unit, total), leaves () {} })
  }
  const options = Object.entries({ '--organization': organization, '--since': since?.toISOString() })
    .flatMap(([option, value]) => value === undefined ? [] : [option, value])
  withTerminal(terminal, () => sendCommand(locked, ['audit', 'export', ...options])).then(
    (status) => status === 0 ? out.end() : out.destroy(new StartError(problems.join('\n'))),
    (error: Error) => out.destroy(error))
  yield * out as AsyncIterable<Buffer>
}

/**
 * Rotates the chain key of one organization, or of all. Yields a line for the operator and whether the key was rotated.
 * Continues after a failed rotation, unless the database is unavailable. An interrupted run can be repeated.
 */
export async function * rotateChainKeys (
  { database: { db }, keyring }: Opened, organization: string | undefined
): AsyncGenerator<{ line: string, isDone: boolean }> {
  for await (const id of organizationsOnce(db, organization)) {
    try {
      const key = await retryDatabase(() => rotateChainKey(db, keyring, id))
      if (key !== undefined) {
        yield { line: `${id}: events from ${key.from_seq} on use the key ${key.kid}`, isDone: true }
      } else if (organization !== undefined) {
        yield { line: `${id}: the organization is deleted, so its chain is closed`, isDone: false }
      }
    } catch (error) {
      // A lock timeout concerns only this organization. An unavailable database concerns all organizations.
      if (error instanceof DatabaseUnavailable && !isLockTimeout(error)) throw error
      yield { line: `${id}: ${lineOf(error)}`, isDone: false }
    }
  }
}

/** Rotates the chain key of an organization. Returns the new key; undefined without a counter row. */
export async function rotateChainKey (
  db: Db, keyring: Keyring, organizationId: string
): Promise<ChainKeyRow | undefined> {
  try {
    const { written } = await change(db, operatorOf(organizationId), {
      load: async (db) => lockCurrentCanary(db, keyring),
      decide: () => ({
        write: async (db, lockCounter) => handOverChain(db, keyring, await lockCounter()),
        events: ({ event }) => [event]
      })
    })
    return written.key
  } catch (error) {
    if (error instanceof CallerEnded) return undefined
    throw error
  }
}

// Lists the organizations again at the end: organizations created during the rotation use the first chain key, so they
// need a rotation as well.
async function * organizationsOnce (db: Db, organization: string | undefined): AsyncGenerator<string> {
  const ids = await organizationsOf(db, { organization })
  yield * ids
  if (organization !== undefined) return
  const known = new Set(ids)
  for (const id of await organizationsOf(db, {})) if (!known.has(id)) yield id
}

/** One line for the operator. An export comes from a file, so its texts are escaped. */
export function describeVerified (verified: Verified): string {
  return rowOf(describe(verified))
}

function describe ({ organization, after, events, last, broken }: Verified): string {
  if (broken === null) {
    const range = after === null ? `up to ${last}` : `after ${after} up to ${last}; earlier events were not checked`
    return `${organization}: ${events} events verified, ${range}`
  }
  const { sequence, reason, expected, actual } = broken
  return `${organization}: event ${sequence} ${reason} (expected ${expected ?? '-'}, actual ${actual ?? '-'})`
}

/** Verifies the chains in the database. With `since`, starts at the first event at or after that time. */
export async function * verifyDatabase (
  { database: { db }, keyring }: Opened, filter: Filter, anchors: Anchors, progress = NO_PROGRESS
): AsyncGenerator<Verified> {
  const first = firstKey(keyring, await wrappedKey(db))
  const organizations = await organizationsOf(db, filter, anchors)
  progress.begin('Verifying', 'events', await countEvents(db, organizations))
  for (const organization of organizations) {
    // Reads the start of the range before its end, because events may be appended in between.
    const after = filter.since && await findBefore(db, organization, filter.since)
    progress.advance(after?.seq ?? 0)
    const { last, head, keys } = await findChain(db, organization)
    const chain = { organization_id: organization, ...head, after: after ?? null }
    const verifier = new ChainVerifier(chain, await keysIn(db, keyring, first, keys), anchors)
    for await (const events of readChain(db, organization, after?.seq ?? null, last)) {
      progress.advance(events.length)
      if (!events.every((event) => verifier.add(event))) break
    }
    yield verifier.end()
  }
}

/** Yields the lines of an export. With `since`, an export lacks the earlier events, so these cannot be verified. */
export async function * exportEvents (
  { database: { db }, keyring }: Opened, { organization, since }: Filter, progress = NO_PROGRESS
): AsyncGenerator<string> {
  const line = (value: object) => `${JSON.stringify(value)}\n`
  const organizations = await organizationsOf(db, { organization })
  const only = organization === undefined ? null : organizations[0]!
  const from = since?.toISOString() ?? null
  const wrapped = await wrappedKey(db)
  const first = firstKey(keyring, wrapped)
  yield line({ format: FORMAT, organization: only, since: from, key: wrapped.toString('base64') })
  progress.begin('Exporting', 'events', await countEvents(db, organizations))
  let events = 0
  for (const id of organizations) {
    const after = since && await findBefore(db, id, since)
    const { last, head, keys } = await findChain(db, id)
    const begin = (after?.seq ?? 0) + 1
    progress.advance(begin - 1)
    const its = await keysIn(db, keyring, first, keys)
    const needed = new Set(its.filter((_key, i) => (its[i + 1]?.from_seq ?? Infinity) > begin).map(({ kid }) => kid))
    for (const { kid, ...key } of keys) {
      if (needed.has(kid)) yield line({ chain_key: kid, ...key, wrapped: key.wrapped.toString('base64') })
    }
    const { event_head, ...chain } = head
    const { key } = its.at(-1)!
    const mac = exportMac(key, { organization_id: id, only, since: from, after: after ?? null, ...head })
    yield line({ organization: id, ...chain, event_head: hexOf(event_head), after: toAfter(after), mac: hexOf(mac) })
    for await (const rows of readChain(db, id, after?.seq ?? null, last)) {
      events += rows.length
      progress.advance(rows.length)
      yield rows.map(({ mac, ...event }) => line({ ...event, mac: hexOf(mac) })).join('')
    }
  }
  yield line({ organizations: organizations.length, events })
}

/** Verifies the chains of the export in a file, as `verifyExport` does. */
export async function * verifyFile (
  keyring: Keyring, file: string, filter: Filter, anchors: Anchors, progress = NO_PROGRESS
): AsyncGenerator<Verified> {
  progress.begin('Verifying', 'bytes', await stat(file).then((found) => found.isFile() ? found.size : undefined, () => undefined))
  yield * verifyExport(keyring, file, advancing(readChunks(file), progress), filter, anchors)
}

/**
 * Verifies the chains of an export. Throws a StartError if it is not a complete export, has no events of the given
 * organization, or needs a missing master key. `file` is its name for messages.
 */
async function * verifyExport (
  keyring: Keyring, file: string, chunks: AsyncIterable<Buffer>, filter: Filter, anchors: Anchors
): AsyncGenerator<Verified> {
  let first: ChainKey | undefined
  let rows: ChainKeyRow[] = []
  let verifier: ChainVerifier | undefined
  let isBroken = false
  let exported: { only: string | null, since: string | null } = { only: null, since: null }
  let stated: Counts | undefined
  const counted: Counts = { organizations: 0, events: 0 }
  const wanted = filter.organization?.toUpperCase()
  const seen = new Set<string>()
  const end = (): Verified[] => {
    const verified = verifier === undefined ? [] : [verifier.end()]
    verifier = undefined
    isBroken ||= verified.some(({ broken }) => broken !== null)
    return verified
  }
  for await (const text of linesOf(chunks)) {
    const value = readLine(text)
    if (stated !== undefined) refuse(`${file} has trailing data after its last line`)
    if (first === undefined) {
      if (value?.format !== FORMAT || typeof value.key !== 'string') {
        refuse(`${file} is not an audit export, or comes from an incompatible build`)
      }
      first = firstKey(keyring, Buffer.from(value.key, 'base64'))
      exported = { only: textOf(value.organization), since: textOf(value.since) }
    } else if (value !== undefined && typeof value.chain_key === 'string') {
      yield * end()
      rows.push(chainKeyOf(value, value.chain_key))
    } else if (value !== undefined && typeof value.organization === 'string') {
      yield * end()
      counted.organizations++
      if (wanted === undefined || wanted === value.organization) {
        seen.add(value.organization)
        const keys = keysOf(keyring, first, rows, () => true)
        const chain = chainOf(value.organization, exported, value)
        const mac = bytesOf(value.mac)
        const isForged = mac === null || !exportMac(keys.at(-1)!.key, chain).equals(mac)
        // Without a valid MAC, the start of the chain is not trusted, so verify from the first event.
        verifier = new ChainVerifier({ ...chain, ...(isForged && { after: null, isForged }) }, keys, anchors)
      }
      rows = []
    } else if (value !== undefined && typeof value.events === 'number') {
      stated = { organizations: Number(value.organizations), events: value.events }
    } else {
      counted.events++
      const event = verifier && value && eventOf(value)
      if (event === undefined) verifier?.addUnreadable()
      else verifier?.add(event)
    }
  }
  yield * end()
  if (first === undefined) refuse(`${file} is empty`)
  if (stated === undefined) refuse(`${file} is truncated: its last line is missing`)
  // If an organization has an anchor but is not in the export, all of its events are missing.
  for (const organization of anchors.organizations()) {
    const isExported = exported.only === null || exported.only === organization
    if (seen.has(organization) || !isExported || (wanted ?? organization) !== organization) continue
    seen.add(organization)
    isBroken = true
    yield new ChainVerifier(
      { organization_id: organization, next_event: 1, event_head: null, chain_kid: null, after: null }, [first], anchors
    ).end()
  }
  if (wanted !== undefined && seen.size === 0) {
    refuse(`${file} has no events of the organization ${filter.organization}`)
  }
  // Compare the counts only if all chains are intact: missing events have already been reported as a broken chain.
  if (!isBroken && (stated.organizations !== counted.organizations || stated.events !== counted.events)) {
    refuse(`${file} is truncated: its last line states ${inWords(stated)}, but it contains ${inWords(counted)}`)
  }
}

/** The numbers in the last line of an export. */
interface Counts { organizations: number, events: number }

const inWords = ({ organizations, events }: Counts) => `${events} events of ${organizations} organizations`

/** Reads the anchors from a log file; ignores other log lines. */
export async function readAnchors (file: string | undefined): Promise<Anchors> {
  const anchors = new Anchors()
  if (file === undefined) return anchors
  for await (const text of linesOf(readChunks(file))) {
    if (!text.includes('audit anchor')) continue
    const { msg, organization, sequence, mac } = readLine(text) ?? {}
    const bytes = bytesOf(mac)
    if (msg === 'audit anchor' && typeof organization === 'string' && Number.isSafeInteger(sequence) && bytes) {
      anchors.add({ organization, sequence: sequence as number, mac: bytes })
    }
  }
  return anchors
}

async function organizationsOf (db: Db, { organization }: Filter, anchors?: Anchors): Promise<string[]> {
  // Includes organizations that have an anchor but no chain, so that the verification reports their events as missing.
  const all = [...new Set([...await listChains(db), ...anchors?.organizations() ?? []])].sort()
  if (organization === undefined) return all
  const id = (await findOrganization(db, organization))?.id ?? organization.toUpperCase()
  if (!all.includes(id)) refuse(`There is no organization ${organization}`)
  return [id]
}

async function wrappedKey (db: Db): Promise<Buffer> {
  const { wrapped } = await findServiceKey(db, FIRST_CHAIN_KEY) ?? refuse('The audit chain key is missing')
  return wrapped
}

function firstKey (keyring: Keyring, wrapped: Buffer): ChainKey {
  const key = opened(() => openFirstKey(keyring, wrapped), () => true) ??
    refuse('The audit chain key cannot be unwrapped')
  return { kid: FIRST_CHAIN_KEY, from_seq: 1, key }
}

// Ignores a key that cannot be unwrapped. The verification then fails at the event that begins the use of this key.
function keysOf (
  keyring: Keyring, first: ChainKey, rows: readonly ChainKeyRow[], isMasterKey: (id: string) => boolean
): ChainKeys {
  const others = rows.flatMap((row) => {
    const key = opened(() => openChainKey(keyring, row), isMasterKey)
    return key === undefined ? [] : [{ kid: row.kid, from_seq: row.from_seq, key }]
  })
  return [first, ...others.sort((a, b) => a.from_seq - b.from_seq)]
}

/**
 * Unwraps the keys of a chain. Every master key in use has a canary, so a row that names a master key without a canary
 * is forged and is ignored. Throws a StartError if a master key with a canary is missing from the keyring.
 */
async function keysIn (db: Db, keyring: Keyring, first: ChainKey, rows: readonly ChainKeyRow[]): Promise<ChainKeys> {
  const canaries = rows.length === 0 ? [] : await listCanaries(db)
  return keysOf(keyring, first, rows, (id) => canaries.some(({ key_id }) => key_id === id))
}

function opened (open: () => ChainKey['key'], isMasterKey: (id: string) => boolean): ChainKey['key'] | undefined {
  try {
    return open()
  } catch (error) {
    if (error instanceof MasterKeyMissing) {
      if (!isMasterKey(error.id)) return undefined
      refuse(`Master key ${error.id} is missing: it wraps an audit chain key`)
    }
    if (error instanceof IntegrityError) return undefined
    throw error
  }
}

/** Yields the lines of a text; replaces a line that is too long with an empty line. */
async function * linesOf (chunks: AsyncIterable<Buffer>): AsyncGenerator<string> {
  const decoder = new StringDecoder('utf8')
  let rest = ''
  let isTooLong = false
  for await (const piece of chunks) {
    const lines = (rest + decoder.write(piece)).split('\n')
    rest = lines.pop()!
    if (isTooLong && lines.length > 0) {
      lines[0] = ''
      isTooLong = false
    }
    for (const line of lines) yield line.length > MAX_LINE_LENGTH ? '' : line
    if (rest.length > MAX_LINE_LENGTH) {
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

// Checks only the fields that are parsed here. An invalid value in another field makes the MAC invalid.
function eventOf (value: Record<string, unknown>): ChainRow | undefined {
  const { seq, occurred_at, mac } = value
  const time = typeof occurred_at === 'string' ? parseTimestamp(occurred_at) : undefined
  if (!Number.isSafeInteger(seq) || time === undefined) return undefined
  return { ...value, occurred_at: time, mac: bytesOf(mac) } as unknown as ChainRow
}

function chainOf (
  organization_id: string, exported: { only: string | null, since: string | null }, value: Record<string, unknown>
): ExportedChain {
  const { seq, mac } = (value.after ?? {}) as Record<string, unknown>
  const before = bytesOf(mac)
  return {
    organization_id,
    ...exported,
    next_event: Number(value.next_event),
    event_head: bytesOf(value.event_head),
    chain_kid: textOf(value.chain_kid),
    after: before === null ? null : { seq: Number(seq), mac: before }
  }
}

// Does not validate the fields: a key with invalid fields cannot be unwrapped.
const chainKeyOf = (value: Record<string, unknown>, kid: string): ChainKeyRow => ({
  organization_id: textOf(value.organization_id) ?? '',
  kid,
  from_seq: Number(value.from_seq),
  wrapped: Buffer.from(textOf(value.wrapped) ?? '', 'base64')
})

const textOf = (value: unknown): string | null => typeof value === 'string' ? value : null
const toAfter = (after: { seq: number, mac: Buffer } | undefined) =>
  after === undefined ? null : { seq: after.seq, mac: hexOf(after.mac) }
const hexOf = (bytes: Buffer | null) => bytes === null ? null : bytes.toString('hex')
const bytesOf = (value: unknown): Buffer | null =>
  typeof value === 'string' && /^(?:[0-9a-f]{2}){1,64}$/.test(value) ? Buffer.from(value, 'hex') : null
