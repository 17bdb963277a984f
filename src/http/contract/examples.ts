import type { FastifySwaggerUiOptions } from '@fastify/swagger-ui'

type Plugin = NonNullable<NonNullable<FastifySwaggerUiOptions['uiConfig']>['plugins']>[number]

interface Parameter { in: string, name: string, example?: string }
interface Operation {
  parameters?: (Parameter | { $ref: string })[]
  requestBody?: { content: Record<string, { example?: unknown }> }
  'x-audit-events'?: string[]
}
interface Document {
  info: { description: string }
  servers: [{ url: string }]
  paths: Record<string, Record<string, Operation>>
  components: { parameters: Record<string, Parameter> }
}
interface Level {
  attributes: {
    slug: string, has_secrets: boolean, secret_count: number, environment_count: number, is_production: boolean
  }
}
type Values = Partial<Record<string, string>>

/**
 * Swagger UI plugin: after **Authorize**, the examples name the organization of the token, and a project, a target and
 * an environment that the token can read, or the part to which it is restricted. After a logout, they are the
 * placeholders of the document again. The function is sent to the browser as source text, so it cannot use variables of
 * this module.
 */
export const EXAMPLES = (() => {
  const TIMEOUT_MS = 10_000
  const KINDS = ['organization', 'project', 'target', 'environment']
  let placeholders: Document | undefined
  // Counts logins and logouts, so that the answers to an earlier one do not replace the examples of a later one.
  let turn = 0

  const tokenIn = (authorized: any): string | undefined =>
    authorized.getIn(['oauth', 'token', 'access_token']) ?? authorized.getIn(['bearerToken', 'value'])

  /** The slug of the first level that passes the first test that any level passes, or else of the first level. */
  function choose (levels: Level[], ...tests: ((attributes: Level['attributes']) => unknown)[]): string | undefined {
    const found = tests.map((test) => levels.find(({ attributes }) => test(attributes))).find(Boolean)
    return (found ?? levels[0])?.attributes.slug
  }

  /** Sends at most four requests. Returns also why values are missing. */
  async function find (base: string, token: string, known: Values): Promise<{ values: Values, reason: string }> {
    const values: Values = {}
    const read = async (path: string, query = '') => {
      const headers = { accept: 'application/json', authorization: `Bearer ${token}` }
      const signal = AbortSignal.timeout(TIMEOUT_MS)
      const response = await fetch(`${base}${path}${query}`, { headers, signal, credentials: 'omit' }).catch(() => undefined)
      if (response === undefined) throw new Error(`\`GET ${path}\` has no response`)
      if (!response.ok) throw new Error(`\`GET ${path}\` responds with ${response.status}`)
      return response.json() as any
    }
    const list = async (...path: string[]): Promise<Level[]> =>
      (await read(`/api/v1/${path.join('/')}`, '?per_page=100')).data
    try {
      const { data, included } = await read('/api/v1/user')
      const [part = {}] = data.attributes.restrictions ?? []
      const organization = choose(included, ({ slug }) => slug === known.organization)
      if (organization === undefined) return { values, reason: 'you are a member of no organization' }
      values.organization = organization
      const project = part.project ?? choose(await list(organization, 'projects'),
        ({ slug }) => slug === known.project,
        (one) => one.has_secrets && one.environment_count > 0, (one) => one.environment_count > 0)
      if (project === undefined) return { values, reason: 'there is no project yet' }
      values.project = project
      // The example of a new project is called like the placeholders.
      const isExample = project === known.project
      const target = part.target ?? choose(await list(organization, project, 'targets'),
        ({ slug }) => isExample && slug === known.target,
        (one) => one.secret_count > 0 && one.environment_count > 0, (one) => one.environment_count > 0)
      if (target === undefined) return { values, reason: 'the project has no target yet' }
      values.target = target
      // The examples of changes do less harm outside of production.
      const environment = part.environment ?? choose(await list(organization, project, target, 'environments'),
        ({ slug }) => isExample && slug === known.environment, (one) => !one.is_production)
      if (environment === undefined) return { values, reason: 'the target has no environment yet' }
      return { values: { ...values, environment }, reason: '' }
    } catch (error) {
      return { values, reason: (error as Error).message }
    }
  }

  /**
   * Replaces the placeholders, but not in operations that delete or restore, nor in changes of an API token or a
   * member: one click on Execute must not change what happens to have the number of an example.
   */
  function fill ({ paths, components: { parameters } }: Document, values: Values) {
    const isRisky = (path: string, method: string, events: string[] = []) => method !== 'get' && (method === 'delete' ||
      /\{(?:id|member|version)\}/.test(path) || events.some((event) => /\.(?:delete|purge|restore)$/.test(event)))
    const { target, environment } = values
    const exampleOf = ({ in: place, name }: Parameter) => place === 'path'
      ? values[name]
      : name === 'to' && environment !== undefined ? `environment:${target}/${environment}` : undefined
    for (const [path, item] of Object.entries(paths)) {
      for (const [method, operation] of Object.entries(item)) {
        if (isRisky(path, method, operation['x-audit-events'])) continue
        for (const [i, one] of operation.parameters?.entries() ?? []) {
          const parameter = '$ref' in one ? parameters[one.$ref.split('/').at(-1)!]! : one
          const example = parameter.example === undefined ? undefined : exampleOf(parameter)
          if (example !== undefined) operation.parameters![i] = { ...parameter, example }
        }
        for (const media of Object.values(operation.requestBody?.content ?? {})) {
          const { example } = media
          if (typeof example !== 'object' || example === null || !('project' in example)) continue
          const members = Object.entries(example)
          media.example = Object.fromEntries(members.map(([name, value]) => [name, values[name] ?? value]))
        }
      }
    }
  }

  function describe (values: Values, reason: string): string {
    const missing = KINDS.filter((kind) => values[kind] === undefined)
    const named = KINDS.filter((kind) => values[kind] !== undefined).map((kind) => `${kind} \`${values[kind]}\``)
    return [
      named.length > 0 && `**The examples name ${named.join(', ')}.**`,
      missing.length > 0 && `Placeholders stay for ${missing.join(', ')}: ${reason}.`,
      'Operations that delete or restore, and changes of a token or a member, keep all placeholders.'
    ].filter(Boolean).join(' ')
  }

  /** Shows the document. Bodies of open operations that are not edited become the new examples, as parameters do. */
  function update ({ specSelectors, specActions, oas3Selectors, oas3Actions }: any, document: Document) {
    const shown = specSelectors.specJson().toJS() as Document
    specActions.updateJsonSpec(document)
    const bodyOf = ({ paths }: Document, path: string, method: string) => {
      const [media] = Object.values(paths[path]?.[method]?.requestBody?.content ?? {})
      return media && JSON.stringify(media.example, null, 2)
    }
    for (const [path, item] of Object.entries(document.paths)) {
      for (const method of Object.keys(item)) {
        const current = oas3Selectors.requestBodyValue(path, method)
        const value = bodyOf(document, path, method)
        const isExample = current !== undefined && current === bodyOf(shown, path, method)
        if (isExample) oas3Actions.setRequestBodyValue({ value, pathMethod: [path, method] })
      }
    }
  }

  const show = async (system: any) => {
    const { authSelectors, specSelectors } = system
    const mine = ++turn
    placeholders ??= specSelectors.specJson().toJS() as Document
    const document = structuredClone(placeholders)
    const token = tokenIn(authSelectors.authorized())
    if (token) {
      const known = Object.fromEntries(Object.values(document.components.parameters)
        .filter((parameter) => parameter.in === 'path').map(({ name, example }) => [name, example]))
      const { values, reason } = await find(document.servers[0].url.replace(/\/$/, ''), token, known)
      if (mine !== turn) return
      document.info.description += `\n\n${describe(values, reason)}`
      fill(document, values)
    }
    update(system, document)
  }

  const thenShow = (original: (payload: unknown) => unknown, system: unknown) => (payload: unknown) => {
    const result = original(payload)
    show(system)
    return result
  }
  return {
    statePlugins: { auth: { wrapActions: { authorize: thenShow, authorizeOauth2: thenShow, logout: thenShow } } }
  }
}) as unknown as Plugin
