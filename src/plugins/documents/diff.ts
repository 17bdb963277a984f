import type { FastifyRequest } from 'fastify'
import { DiffAnswer, DiffQuery, type DifferentValue, type Differences } from '../../../schemas/diff.ts'
import { canNameSide } from '../../../schemas/errors.ts'
import type { LevelNames } from '../../../schemas/secrets.ts'
import { SLUG_PATTERN } from '../../../schemas/shapes.ts'
import { requireScope } from '../../http/guard/access.ts'
import { HiddenResource, levelOf, requireLevel, slicesOf } from '../../http/guard/level-lookup.ts'
import { missingLevel } from '../../http/guard/missing-part.ts'
import { inTurn, type Turn } from '../../http/guard/turns.ts'
import { sendRead } from '../../http/responses/large-responses.ts'
import { actorOf, principalOf } from '../../http/routes/actor.ts'
import { LEVEL_PATHS } from '../../http/routes/routes.ts'
import type { Domain } from '../../http/routes/types.ts'
import { findLevel, placeOf, type LevelState, type SecretRow } from '../../repositories/levels/levels.ts'
import { findDocumentsAt } from '../../repositories/secrets/point-in-time.ts'
import { findFullVersion } from '../../repositories/secrets/versions.ts'
import { compareEntries, type Entries } from '../../rules/documents/entries.ts'
import { ApiError, fail, refuse } from '../../rules/api-error.ts'
import { parseId } from '../../rules/formats/ids.ts'
import { offsetHint, parseTimestamp } from '../../rules/formats/timestamps.ts'
import { requireKeptAt, requireKeptVersion } from '../../rules/moments.ts'
import { isInside, type Slice } from '../../rules/slices.ts'
import {
  charactersOf, currentContents, eventOfReading, mergedValues, pastContents, requireNames, versionContents,
  visibleSecrets, type Contents
} from '../../vault/documents/read.ts'
import { storageKeyOf } from '../../vault/keys/keys.ts'

type Member = 'from' | 'to'

/** One side of a comparison. The id of a version is undefined if the given number cannot be an id. */
type Side = { kind: 'version', id: number | undefined } | { kind: 'level', names: LevelNames } | { kind: 'moment', at: Date }

interface Comparison extends Record<Member, Side> { merge: boolean, values: boolean }

/** The documents of a side, with the level that its audit event names. */
interface Found {
  state: LevelState
  documents: readonly Pick<SecretRow, 'id' | 'revision' | 'sealed'>[]
  open: () => Promise<Contents>
}

/** Compares the names and values of two versions, two levels or two moments. */
export const diff: Domain = async (app) => {
  for (const { level, path, word } of LEVEL_PATHS) {
    app.get(`/:organization${path}/secrets/diff`, {
      config: {
        access: ['secret:read', 'secret:decrypt'],
        mayNeed: ['secret:history'],
        rules: [
          { reads: ['from'], check: (request) => { sideIn(request, 'from') } },
          { reads: ['to'], check: (request) => { sideIn(request, 'to') } },
          { reads: ['from', 'to', 'merge'], check: comparisonOf }
        ],
        at: level,
        audit: ['secret.names', 'secret.decrypt'],
        errors: [
          'invalid_parameter_combination', 'client_managed_encryption', 'document_unreadable', 'version_locked',
          'version_gone', 'integrity_error'
        ]
      },
      schema: {
        operationId: `compare${word}Secrets`,
        summary: `Compare two versions, levels or times of the ${level}: the names added, removed and changed`,
        description: '`values` adds both values of each difference.',
        querystring: DiffQuery,
        response: { 200: DiffAnswer }
      },
      // The scope is checked before the parameters are validated.
      preValidation: async (request) => {
        const { from, to } = request.query as Record<Member, unknown>
        if (isOfHistory(from) || isOfHistory(to)) requireScope(request, 'secret:history')
      },
      handler: async (request, reply) => {
        const { answer, characters } = await inTurn(request, async (turn) => compare(request, turn))
        return sendRead(reply, answer, characters)
      }
    })
  }

  async function compare (request: FastifyRequest, { waitFor, pace }: Turn) {
    requireNames(levelOf(request))
    const comparison = comparisonOf(request)
    const { values } = comparison
    const found = await waitFor(Promise.all([
      ofSide('from', find(request, comparison, 'from')), ofSide('to', find(request, comparison, 'to'))
    ]))
    let characters = 0
    const [from, to] = [await ofSide('from', read(found[0])), await ofSide('to', read(found[1]))]
    const began = performance.now()
    const names = compareEntries(from, to)
    const attributes = { ...names, ...(values && { values: valuesOf(names, from, to) }) }
    await pace(began)
    await record(request, found, comparison)
    const answer: { data: Differences } = { data: { type: 'secret-differences', attributes } }
    return { answer, characters }

    async function read ({ state, open }: Found): Promise<Entries> {
      const contents = await open()
      characters += charactersOf(contents)
      return mergedValues(state, contents, { onlyMerged: [] }, pace)
    }
  }

  async function find (request: FastifyRequest, comparison: Comparison, member: Member): Promise<Found> {
    const side = comparison[member]
    if (side.kind === 'version') return findVersion(request, side.id)
    return side.kind === 'level'
      ? findCurrent(request, side.names, comparison.merge)
      : findPast(request, member, side.at, comparison.merge)
  }

  async function findVersion (request: FastifyRequest, id: number | undefined): Promise<Found> {
    const { organization } = principalOf(request)
    const { id: organization_id } = organization
    const state = levelOf(request)
    const found = id === undefined ? undefined : await findFullVersion(app.reads, { organization_id, id })
    if (found === undefined || found.secret.level_id !== state.level_id) {
      return failMissing(slicesOf(request), async () => 'version')
    }
    const { version, secret, sealed } = found
    requireKeptVersion(version, organization.plan)
    return {
      state,
      documents: [{ id: secret.id, revision: version.revision, sealed }],
      open: () => versionContents(app.keyring, storageKeyOf(app.keyring, organization), found)
    }
  }

  async function findCurrent (request: FastifyRequest, names: LevelNames, isMerged: boolean): Promise<Found> {
    const { organization } = principalOf(request)
    const slices = slicesOf(request)
    const found = await findLevel(app.reads, organization.id, names, 'readable')
    if (found === undefined) return failMissing(slices, () => missingLevel(app, request, names))
    const state = requireLevel(request, found)
    requireNames(state)
    const documents = visibleSecrets(state, slices).filter(({ level_id }) => isMerged || level_id === state.level_id)
    return {
      state,
      documents,
      open: () => currentContents(app.keyring, storageKeyOf(app.keyring, organization), state, documents, true)
    }
  }

  async function findPast (request: FastifyRequest, member: Member, at: Date, isMerged: boolean): Promise<Found> {
    const { organization } = principalOf(request)
    const slices = slicesOf(request)
    const state = levelOf(request)
    const found = await findDocumentsAt(app.reads, state, at, organization.plan.retention_days) ??
      fail('not_found', { resource: state.level, at })
    if (found === 'future') return refuse(member, 'Lies in the future')
    const documents = found.filter(({ level, level_id }) =>
      isInside(slices, placeOf(state, level)) && (isMerged || level_id === state.level_id))
    requireKeptAt(documents, organization.plan)
    return {
      state,
      documents,
      open: () => pastContents(app.keyring, storageKeyOf(app.keyring, organization), documents, true)
    }
  }

  // Records one event for each opened level. If both sides are of one level, its event has the documents of both sides.
  async function record (request: FastifyRequest, found: readonly Found[], { from, to, values }: Comparison) {
    const levels = new Map<string, Omit<Found, 'open'>>()
    for (const { state, documents } of found) {
      const known = levels.get(state.level_id)?.documents ?? []
      levels.set(state.level_id, { state, documents: [...known, ...documents] })
    }
    const more = { from: textOf(from), to: textOf(to) }
    await Promise.all([...levels.values()].map(({ state, documents }) => {
      const { event, bytes } = eventOfReading(state, documents, values ? 'secret.decrypt' : 'secret.names', more)
      return app.recordRead(actorOf(request), event, bytes)
    }))
  }
}

// Adds the side, `from` or `to`, to the details of an error.
async function ofSide<T> (side: Member, work: Promise<T>): Promise<T> {
  try {
    return await work
  } catch (error) {
    throw error instanceof ApiError && canNameSide(error.code)
      ? new ApiError(error.code, { ...error.details as object | undefined, side }, error.errors)
      : error
  }
}

const VERSION = /^[0-9]+$/
const SLUG = SLUG_PATTERN.slice(1, -1)
const LEVEL = new RegExp(
  `^(?:project|target(?::(?<target>${SLUG}))?|environment(?::(?:(?<parent>${SLUG})/)?(?<environment>${SLUG}))?)$`
)

const isOfHistory = (text: unknown) =>
  typeof text === 'string' && (VERSION.test(text) || parseTimestamp(text) !== undefined)

const sideIn = ({ query, params }: FastifyRequest, member: Member): Side =>
  sideOf(member, (query as DiffQuery)[member], params as LevelNames)

function comparisonOf (request: FastifyRequest): Comparison {
  const { merge = false, values = false } = request.query as DiffQuery
  const comparison = { from: sideIn(request, 'from'), to: sideIn(request, 'to'), merge, values }
  const code = 'invalid_parameter_combination'
  if (comparison.from.kind !== comparison.to.kind) refuse('to', 'Compare two versions, two levels or two times', code)
  if (merge && comparison.from.kind === 'version') refuse('merge', 'A version is a single document', code)
  return comparison
}

function sideOf (member: Member, text: string, own: LevelNames): Side {
  if (VERSION.test(text)) return { kind: 'version', id: parseId(text) }
  const level = LEVEL.exec(text)
  if (level !== null) return { kind: 'level', names: namesOfLevel(member, level, own) }
  const at = parseTimestamp(text)
  if (at !== undefined) return { kind: 'moment', at }
  const rule = 'Expected an RFC 3339 time, the number of a version, or a level, such as `environment:live`'
  return refuse(member, rule + offsetHint(text))
}

const FORMS: Record<string, string> = { target: 'target:SLUG', environment: 'environment:TARGET/SLUG' }

function namesOfLevel (
  member: Member, { 0: text, groups: named = {} }: RegExpExecArray, { project, target, environment }: LevelNames
): LevelNames {
  const [level = ''] = text.split(':')
  const absent = (missing: string) =>
    refuse(member, `The path has no ${missing}: use \`${FORMS[level]}\``, 'invalid_parameter_combination')
  if (level === 'project') return { project }
  const parent = named.parent ?? named.target ?? target ?? absent('target')
  if (level === 'target') return { project, target: parent }
  return { project, target: parent, environment: named.environment ?? environment ?? absent('environment') }
}

// The text of a side in the audit event. A level is written with all slugs of its path, a time in UTC.
function textOf (side: Side): string {
  if (side.kind === 'version') return String(side.id)
  if (side.kind === 'moment') return side.at.toISOString()
  const { target, environment } = side.names
  if (environment !== undefined) return `environment:${target!}/${environment}`
  return target === undefined ? 'project' : `target:${target}`
}

function valuesOf (
  { added, removed, changed }: ReturnType<typeof compareEntries>, from: Entries, to: Entries
): DifferentValue[] {
  return [...added, ...removed, ...changed].sort().map((name) => {
    const [before, after] = [from[name], to[name]]
    if (before === undefined) return { name, to: after! }
    return after === undefined ? { name, from: before } : { name, from: before, to: after }
  })
}

// For a restricted caller, a missing and a hidden resource must have the same response after the same time.
async function failMissing (slices: readonly Slice[], find: () => Promise<string | undefined>): Promise<never> {
  if (slices.length > 0) throw new HiddenResource()
  const resource = await find()
  return fail('not_found', resource === undefined ? {} : { resource })
}
