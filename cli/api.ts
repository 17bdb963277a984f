import createClient, { type Client } from 'openapi-fetch'
import { setTimeout as sleep } from 'node:timers/promises'
import { endCopies } from './cache.ts'
import { Away, awayOf, endedBy, Failure, Refusal } from './failure.ts'
import { accessTokenOf } from './logins.ts'
import { plain } from './output.ts'
import { organizationIn, type Place, type Service } from './settings.ts'
import type { components, paths } from '../dist/openapi-types.d.ts'

export type Schemas = components['schemas']

/** How long a command waits for the service, in milliseconds: `run` starts programs, so it waits less. */
export const RUN_MS = 3_000
export const COMMAND_MS = 30_000
/** The longest wait after a 429 that a command takes upon itself. */
const RETRY_SECONDS = 5

/** Bytes of the largest response that is read: more than each response that the service gives to these commands. */
const MAX_RESPONSE = 64 * 1024 * 1024

/** A response whose body fails with `Away` beyond MAX_RESPONSE bytes, so that the memory is not filled. */
function bounded (response: Response, url: string): Response {
  if (response.body === null) return response
  let bytes = 0
  const body = response.body.pipeThrough(new TransformStream<Uint8Array, Uint8Array>({
    transform (part, controller) {
      bytes += part.byteLength
      if (bytes > MAX_RESPONSE) controller.error(new Away(`${url} answered with more than 64 MiB.`))
      else controller.enqueue(part)
    }
  }))
  return new Response(body, { status: response.status, headers: response.headers })
}

/** A response of the service to a request that succeeded. */
export interface Reply<T> { data: T, headers: Headers }
type Request<T> = (client: Client<paths>) => Promise<{ data?: T, error?: unknown, response: Response }>

export interface Api {
  /**
   * Sends a request; waits once after a short 429. Throws `Refusal` if the service refuses, and `Away` if there is no
   * response of the service: no connection, a timeout, a status of 500 and more, a long 429, or a page of a proxy.
   */
  send<T> (request: Request<T>): Promise<Reply<T>>
}

/** Calls the service. All requests together wait for `waitMs`, and for one `Retry-After` of up to 5 s in addition. */
export function createApi (service: Service, waitMs: number): Api {
  const { url, credential } = service
  let until = Date.now() + waitMs
  let token: string | undefined
  let hasWaited = false
  let signal: AbortSignal
  const client = createClient<paths>({
    baseUrl: url,
    fetch: async (request) => {
      request.headers.set('authorization', `Bearer ${token}`)
      // The first versions of Node.js 20 lose the headers of a request that is sent with further settings.
      const settings = { headers: request.headers, redirect: 'error', credentials: 'omit', signal } as const
      return bounded(await fetch(request, settings), url)
    }
  })

  async function tokenOf (signal: AbortSignal, rejected: string | undefined): Promise<string | Response> {
    if (credential.kind === 'token') return credential.token
    if (credential.kind === 'login') return accessTokenOf(credential.login, signal, rejected)
    if (token !== undefined) return token
    const { exchange } = await import('./oauth.ts')
    const { platformToken } = await import('./workload.ts')
    return exchange(url, credential.client, await platformToken(process.env.STRONGROOM_AUDIENCE || url, signal), signal)
  }

  /** One attempt; returns the response if it is a 429. */
  async function attempt<T> (request: Request<T>, rejected?: string): Promise<Reply<T> | Response> {
    signal = AbortSignal.timeout(Math.max(1, until - Date.now()))
    const found = await tokenOf(signal, rejected)
    if (found instanceof Response) return found
    token = found
    const { data, error, response } = await request(client).catch((error: unknown) => { throw awayOf(url, error) })
    if (response.headers.get('x-api-version') === null) {
      throw new Away(`${url} answered with a page that is not the service's (status ${response.status}).`)
    }
    if (response.ok) return { data: data as T, headers: response.headers }
    if (response.status >= 500) throw new Away(`${url} answered with status ${response.status}.`)
    if (response.status === 429) return response
    throw refusalOf(response.status, error)
  }

  return {
    async send<T> (request: Request<T>) {
      let rejected: string | undefined
      for (;;) {
        try {
          const reply = await attempt(request, rejected)
          if (!(reply instanceof Response)) return reply
          const text = reply.headers.get('retry-after') ?? '1'
          const seconds = Math.max(0, Number(text))
          if (hasWaited || !(seconds <= RETRY_SECONDS)) {
            throw new Away(`${url} asks to wait (status 429, Retry-After: ${text}).`)
          }
          hasWaited = true
          until += seconds * 1000
          await sleep(seconds * 1000)
        } catch (error) {
          const isRejected = error instanceof Refusal && error.httpStatus === 401 && credential.kind === 'login'
          if (!isRejected || rejected !== undefined) {
            if (endedBy(error) === 'caller') endCopies(service)
            throw error
          }
          rejected = token
        }
      }
    }
  }
}

function refusalOf (status: number, body: unknown): Refusal {
  const { error = '', message, details = {}, errors = {} } = Object(body) as {
    error?: string, message?: string, details?: { required_scope?: string }, errors?: Record<string, string[]>
  }
  const sentences = [
    message ?? `The service refused the request with status ${status}.`,
    details.required_scope === undefined ? '' : `It needs the scope ${details.required_scope}.`,
    ...Object.entries(errors).map(([field, [text]]) => `${field}: ${text}.`).filter((one) => message?.includes(one) !== true),
    status === 401 ? 'Sign in with `strongroom login`, or use another token.' : ''
  ]
  return new Refusal(plain(sentences.filter((one) => one !== '').join(' ')), status, error)
}

// The paths of the three kinds of levels have the same operations with the same shapes.

type Operations<Suffix extends string> = `/api/v1/{organization}/{project}/{target}/{environment}${Suffix}`

/** The template of a path below a level. */
export const templateOf = <Suffix extends string>({ target, environment }: Place, suffix: Suffix): Operations<Suffix> =>
  `/api/v1/{organization}/{project}${target === undefined ? '' : '/{target}'}${environment === undefined ? '' : '/{environment}'}${suffix}` as Operations<Suffix>

/** The parameters of a path below a level. */
export const parametersOf = (organization: string, { project, target = '', environment = '' }: Place) =>
  ({ organization, project, target, environment })

/** The names of a level, merged with the levels above. */
export const namesAt = async (api: Api, organization: string, place: Place): Promise<Schemas['SecretNameList']> =>
  (await api.send((client) => client.GET(templateOf(place, '/secrets/names'), {
    params: { path: parametersOf(organization, place), query: { merge: true } }
  }))).data

/** The documents of a level and of the levels above, as the service stores them. */
export const storedAt = async (api: Api, organization: string, place: Place): Promise<Schemas['SecretsAnswer']> =>
  (await api.send((client) => client.GET(templateOf(place, '/secrets'), {
    params: { path: parametersOf(organization, place) }
  }))).data as Schemas['SecretsAnswer']

/** The organization of a request: the named one, that of the token or trust rule, or the only one of the login. */
export async function organizationOf (api: Api, { credential }: Service, named: string | undefined): Promise<string> {
  if (named !== undefined) return named
  if (credential.kind === 'workload') return organizationIn(credential.client)!
  if (credential.kind === 'token') {
    const { data } = await api.send((client) => client.GET('/api/v1/organization'))
    return data.data.attributes.slug
  }
  const { data } = await api.send((client) => client.GET('/api/v1/user'))
  const slugs = data.included.map(({ attributes }) => attributes.slug)
  if (slugs.length === 1) return slugs[0]!
  // As for an organization that the caller left, so that the copies of the place end.
  if (slugs.length === 0) throw new Refusal('You belong to no organization.', 404, 'not_found')
  throw new Failure(
    `You belong to several organizations: choose one with --organization. They are ${slugs.join(', ')}.`)
}
