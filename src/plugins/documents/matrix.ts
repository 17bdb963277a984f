import type { FastifyRequest } from 'fastify'
import { MatrixAnswer, MatrixQuery, type Matrix, type MatrixLevel } from '../../../schemas/matrix.ts'
import type { Level } from '../../../schemas/secrets.ts'
import { booleanIn } from '../../http/bodies/validation.ts'
import { levelOf, slicesOf } from '../../http/guard/level-lookup.ts'
import { inTurn, type Turn } from '../../http/guard/turns.ts'
import { sendRead } from '../../http/responses/large-responses.ts'
import { actorOf, principalOf } from '../../http/routes/actor.ts'
import { waitFor } from '../../http/routes/request-deadline.ts'
import type { Domain } from '../../http/routes/types.ts'
import {
  listLevels, ownSecret, positionOf, type LevelPosition, type LevelState, type SecretRow
} from '../../repositories/levels/levels.ts'
import { nameFilter } from '../../rules/documents/entries.ts'
import { refuseEach } from '../../rules/api-error.ts'
import { offsetOf, pageMeta, pageOf } from '../../rules/pagination.ts'
import { etagOf } from '../../vault/documents/documents.ts'
import { isUnreadable, nameRows, openLevels, ownDocument } from '../../vault/documents/matrix.ts'
import { eventOfReading, requireNames } from '../../vault/documents/read.ts'
import { storageKeyOf } from '../../vault/keys/keys.ts'

/** The approximate number of characters of a cell in a response. */
const CELL_LENGTH = 60

/** Shows the names of a project as rows, and its levels as columns. */
export const matrix: Domain = async (app) => {
  app.get('/:organization/:project/secrets/matrix', {
    config: {
      access: ['secret:read', 'secret:decrypt'],
      lessAccess: {
        anyOf: ['secret:read', 'secret:history'],
        when: ({ query }) => booleanIn((query as { decrypt?: unknown }).decrypt) === false
      },
      rules: [{ reads: ['decrypt'], check: validateFilters }],
      at: 'project',
      filtersLevels: true,
      audit: 'secret.names',
      errors: ['invalid_parameter_combination', 'client_managed_encryption', 'integrity_error']
    },
    schema: {
      operationId: 'readProjectMatrix',
      summary: 'Compare all levels of a project: for each name, the levels that set, inherit, override or lack it; no values',
      description: 'Cells of a name with the same `value_group` have the same value.',
      querystring: MatrixQuery,
      response: { 200: MatrixAnswer }
    },
    handler: async (request, reply) => {
      const { query } = request
      const { attributes, meta } = query.decrypt === false
        ? await listColumns(request, query)
        : await inTurn(request, async (turn) => compareLevels(request, query, turn))
      const { levels, names } = attributes
      const characters = (names ?? []).reduce((sum, { name }) => sum + name.length + levels.length * CELL_LENGTH, 0)
      const data: Matrix = { type: 'secret-matrix', attributes }
      return sendRead(reply, { data, meta }, characters)
    }
  })

  async function compareLevels (request: FastifyRequest, query: MatrixQuery, turn: Turn) {
    requireNames(levelOf(request))
    const { prefix = '', search = '', only } = query
    const { organization, storageKey, slices, levels, isCut } = await findLevels(request, query)
    const context = { ...turn, db: app.lists, keyring: app.keyring, storageKey }
    const opened = await openLevels(context, organization.id, levels, slices)
    const page = pageOf(query)
    const { rows, total } = await nameRows(
      opened, context, nameFilter(prefix, search), only, { offset: offsetOf(page), limit: page.per_page }
    )
    const { event, bytes } = eventOfReading(
      levelOf(request), opened.documents.map(({ secret }) => secret), 'secret.names'
    )
    await app.recordRead(actorOf(request), event, bytes)
    const columns = opened.columns.map((column) => {
      const document = ownDocument(opened, column)
      return toColumn(storageKey, column.state, document?.secret, isUnreadable(document))
    })
    const last = opened.columns.at(-1)?.state
    const next_levels = (isCut || opened.isCut) && last !== undefined ? cursorOf(last) : null
    const meta = { ...pageMeta(page, total, rows.length), next_levels }
    return { attributes: { project: projectOf(request), levels: columns, names: rows }, meta }
  }

  async function listColumns (request: FastifyRequest, query: MatrixQuery) {
    const { storageKey, levels, isCut } = await findLevels(request, query)
    const columns = levels.map((state) => {
      const own = ownSecret(state)
      return toColumn(storageKey, state, own?.is_stored ? own : undefined, false)
    })
    const meta = { ...pageMeta(pageOf(query), 0, 0), next_levels: isCut ? cursorOf(levels.at(-1)!) : null }
    return { attributes: { project: projectOf(request), levels: columns, names: null }, meta }
  }

  async function findLevels (request: FastifyRequest, { level, levels_after }: MatrixQuery) {
    const { organization } = principalOf(request)
    const slices = slicesOf(request)
    const { levels, isCut } = await waitFor(request, listLevels(
      app.lists, levelOf(request).project,
      { after: levels_after === undefined ? undefined : positionIn(levels_after), level, slices }
    ))
    return { organization, storageKey: storageKeyOf(app.keyring, organization), slices, levels, isCut }
  }
}

function validateFilters ({ query }: FastifyRequest) {
  const { decrypt, ...filters } = query as MatrixQuery
  if (decrypt !== false) return
  const sent = (['prefix', 'search', 'only'] as const).filter((name) => filters[name] !== undefined)
  refuseEach(sent, 'Only for decrypted documents', 'invalid_parameter_combination')
}

function projectOf (request: FastifyRequest) {
  const { name, secret_format, encryption_type } = levelOf(request).project
  return { name, secret_format, encryption_type }
}

function toColumn (
  storageKey: Parameters<typeof etagOf>[0], { level, level_id, project, target, environment }: LevelState,
  secret: SecretRow | undefined, unreadable: boolean
): MatrixLevel {
  return {
    level,
    id: level_id,
    name: (environment ?? target ?? project).name,
    target: target?.slug ?? null,
    target_name: target?.name ?? null,
    environment: environment?.slug ?? null,
    status: environment?.status ?? null,
    version: secret === undefined || secret.version === null ? null : String(secret.version),
    etag: secret === undefined ? null : etagOf(storageKey, [secret]),
    unreadable
  }
}

function positionIn (text: string): LevelPosition {
  const [, slugs = ''] = text.split(':') as [Level, string?]
  const [target = '', environment = ''] = slugs.split('/')
  return { target, environment }
}

// The cursor has the form of a level in a comparison (`diff.ts`), such as `environment:api/live`.
function cursorOf (state: LevelState): string {
  const { target, environment } = positionOf(state)
  const slugs = [target, environment].filter((slug) => slug !== '').join('/')
  return slugs === '' ? state.level : `${state.level}:${slugs}`
}
