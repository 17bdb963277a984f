import type { Static } from '@sinclair/typebox'
import type { FastifyRequest } from 'fastify'
import {
  CHANGE_LIMITS, ChangeAnswer, ChangeBodies, MERGE_PATCH_TYPE, SECRET_NAME_LENGTH, type ChangeBody
} from '../../../schemas/changes.ts'
import type { ErrorCode } from '../../../schemas/errors.ts'
import { WriteHeaders } from '../../../schemas/shapes.ts'
import { changeDocument } from '../../changes/change.ts'
import { levelOf, namesIn, namesOf, requireLevel } from '../../http/guard/level-lookup.ts'
import { isDryRun } from '../../http/routes/params.ts'
import { requirePrecondition } from '../../http/repeats/etags.ts'
import { actorOf, principalOf } from '../../http/routes/actor.ts'
import { LEVEL_PATHS } from '../../http/routes/routes.ts'
import type { Domain, Rule } from '../../http/routes/types.ts'
import { ownSecret, type LevelState, type SecretRow } from '../../repositories/levels/levels.ts'
import { compactJson, patchIn, type PatchValue } from '../../rules/documents/json-values.ts'
import { jsonTree, jsonValue, type JsonMember } from '../../rules/documents/json.ts'
import { ApiError, refuse, refuseEach } from '../../rules/api-error.ts'
import { counted } from '../../rules/formats/phrases.ts'
import { editDocument, type Edited, type RequestedChanges } from '../../vault/documents/change.ts'
import { etagOf } from '../../vault/documents/documents.ts'
import { dryRunAnswer, plannedLevel } from '../../vault/documents/dry-run.ts'
import type { Change, Written } from '../../vault/documents/plan-write.ts'
import { eventOfReading } from '../../vault/documents/read.ts'
import { storageKeyOf } from '../../vault/keys/keys.ts'

// The parser allows some levels more than a value may have, so that the error of the validation names the limit.
const DEPTH_SLACK = 10

// Maximum characters of a name in the path of an error.
const MAX_MEMBER = 200

/** The routes that change single names, one for each level. */
export const changes: Domain = async (app) => {
  for (const { level, path, word } of LEVEL_PATHS) {
    app.patch(`/:organization${path}/secrets`, {
      config: {
        access: ['secret:write', 'secret:decrypt'],
        repeatable: true,
        allowsNul: true,
        freeJson: { members: CHANGE_LIMITS.members, depth: CHANGE_LIMITS.depth + 2 + DEPTH_SLACK },
        // There is no duplicate with PUT, because PUT means to replace the whole document.
        onlyMethod: true,
        rules: CHANGE_RULES,
        dryRun: true,
        at: level,
        // Loads the size of the document, which counts in the limits of the write queue.
        include: 'revisions',
        audit: ['secret.store', 'secret.decrypt'],
        errors: [
          'precondition_failed', 'client_managed_encryption', 'invalid_parameter_combination', 'document_unreadable',
          'plan_limit_reached', 'integrity_error'
        ]
      },
      schema: {
        operationId: `change${word}Secrets`,
        summary: `Change single names in the document of the ${level} and record a version`,
        description: 'All other bytes of the document stay. No version is recorded if nothing changes.',
        headers: WriteHeaders,
        body: ChangeBodies,
        response: { 200: ChangeAnswer }
      },
      handler: async (request, reply) => {
        const { organization } = principalOf(request)
        const storageKey = storageKeyOf(app.keyring, organization)
        const requested = changesIn(request)
        const { headers = {}, body } = await changeDocument<Static<typeof ChangeAnswer>>(app.db, actorOf(request), {
          storageKey,
          load: { names: namesOf(namesIn(request)), include: 'readable' },
          bytes: (ownSecret(levelOf(request))?.size_bytes ?? 0) + lengthOf(requested),
          decide (found) {
            const state = requireLevel(request, found)
            const own = ownSecret(state)
            const secret = own?.is_stored ? own : undefined
            requirePrecondition(request.headers, () => secret && etagOf(storageKey, [secret]))
            const read = secret && eventOfRead(state, secret)
            let edited: Edited
            try {
              edited = editDocument(app.keyring, storageKey, state, requested)
            } catch (error) {
              if (!(error instanceof ApiError) || !OF_CONTENT.includes(error.code) || secret === undefined) throw error
              return { read, refused: error }
            }
            const { blob } = edited
            const change: Change | undefined = blob === undefined
              ? undefined
              : { blob, record: { action: secret ? 'update' : 'create', blob }, event: 'secret.store' }
            const answer = (written?: Written) => {
              const stored = written?.secret ?? secret
              const headers: Record<string, string> = stored === undefined ? {} : { etag: etagOf(storageKey, [stored]) }
              return { headers, body: answerOf(state, edited, change, stored, written) }
            }
            if (!isDryRun(request)) return change === undefined ? { read, answer } : { change, answer }
            return {
              change,
              read,
              async dryRun () {
                const { added, changed, removed } = edited
                const etag = secret === undefined ? null : etagOf(storageKey, [secret])
                const level = await plannedLevel({ state, change, etag, texts: undefined }, { added, changed, removed })
                return { body: { ...answer().body, ...dryRunAnswer(level) } }
              }
            }
          }
        })
        reply.headers(headers)
        return body
      }
    })
  }
}

function answerOf (
  { level, slug }: LevelState, { added, changed, removed, warnings }: Edited, change: Change | undefined,
  stored: SecretRow | undefined, written: Written | undefined
): Static<typeof ChangeAnswer> {
  const version = written === undefined ? null : String(written.secret.version)
  const names = counted(added.length + changed.length + removed.length, 'name')
  return {
    data: {
      type: 'secrets',
      level,
      source: slug,
      bytes: stored?.size_bytes ?? 0,
      secret_id: stored?.id ?? null,
      version,
      unchanged: change === undefined,
      added,
      changed,
      removed
    },
    message: version === null ? 'Nothing was changed.' : `Changed ${names} as version ${version}.`,
    ...warnings
  }
}

/** Errors that depend on the content of the document. Such a request is recorded as a read before the error is sent. */
const OF_CONTENT: ErrorCode[] = ['validation_failed', 'document_unreadable']

// The event of a read, which a request that changes nothing records: its response tells whether the document has these
// names and values.
const eventOfRead = (state: LevelState, secret: SecretRow) =>
  eventOfReading(state, [secret], 'secret.decrypt').event

/** The changes of each request, which validation and handler need. */
const parsed = new WeakMap<FastifyRequest, RequestedChanges>()

function changesIn (request: FastifyRequest): RequestedChanges {
  const known = parsed.get(request)
  if (known !== undefined) return known
  const text = request.bodyText ?? '{}'
  const { members = [], depth } = jsonTree(text)
  const isPatch = request.mediaType === MERGE_PATCH_TYPE
  // The values are in the patch itself, or in `set`.
  if (depth > CHANGE_LIMITS.depth + (isPatch ? 1 : 2)) refuse('body', `A value has at most ${CHANGE_LIMITS.depth} nested levels`)
  const changes = isPatch ? patchOf(text, members) : changeOf(text, members, request.body as ChangeBody | undefined)
  parsed.set(request, changes)
  return changes
}

function patchOf (text: string, members: readonly JsonMember[]): RequestedChanges {
  const patches = members.map(({ name, value }) =>
    [name, text.slice(value.from, value.to) === 'null' ? null : patchIn(text, value)] as const)
  return {
    set: new Map(patches.filter((entry): entry is [string, PatchValue] => entry[1] !== null)),
    unset: patches.filter(([, patch]) => patch === null).map(([name]) => name),
    replace: null,
    memberOf: (name) => name.slice(0, MAX_MEMBER)
  }
}

function changeOf (
  text: string, members: readonly JsonMember[], { set = {}, unset = [], replace = [] }: ChangeBody = {}
): RequestedChanges {
  const values = members.find(({ name }) => name === 'set')?.value.members ?? []
  return {
    set: new Map(values.map(({ name, value }) => [name, { text: compactJson(text.slice(value.from, value.to)) }])),
    unset,
    replace: new Set(replace),
    memberOf: (name) => `${Object.hasOwn(set, name) ? 'set' : 'unset'}.${name.slice(0, MAX_MEMBER)}`
  }
}

const CHANGE_RULES: readonly Rule[] = [
  ({ set, unset, memberOf }: RequestedChanges) => {
    const long = [...set.keys(), ...unset].filter((name) => name.length > SECRET_NAME_LENGTH)
    refuseEach(long.map(memberOf), `A name has at most ${SECRET_NAME_LENGTH} characters`)
  },
  (changes: RequestedChanges) => {
    const length = lengthOf(changes) + changes.unset.reduce((sum, name) => sum + name.length, 0)
    if (length > CHANGE_LIMITS.characters) refuse('body', `More than ${CHANGE_LIMITS.characters.toLocaleString('en')} characters in names and values: store the whole document`)
  },
  ({ set, unset }: RequestedChanges) => {
    const both = unset.filter((name) => set.has(name))
    refuseEach(both.map((name) => `unset.${name.slice(0, MAX_MEMBER)}`), 'Also in `set`')
  },
  ({ set, replace }: RequestedChanges) => {
    const unused = [...replace ?? []].filter((name) => !set.has(name))
    refuseEach(unused.map((name) => `replace.${name.slice(0, MAX_MEMBER)}`), 'Not in `set`')
  }
].map((check) => ({ check: (request: FastifyRequest) => { check(changesIn(request)) } }))

const lengthOf = ({ set }: Pick<RequestedChanges, 'set'>): number =>
  [...set].reduce((sum, [name, patch]) => sum + name.length + charactersOf(patch), 0)

/** The characters of a text, or of the JSON of another value. */
function charactersOf (patch: PatchValue): number {
  if ('text' in patch) return jsonValue(patch.text).length
  return [...patch.members].reduce((sum, [name, value]) =>
    sum + name.length + (value === null ? 'null'.length : charactersOf(value)), 0)
}
