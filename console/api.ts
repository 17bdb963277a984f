import { effect, signal } from '@preact/signals'
import { accessToken, BASE, patientFetch, shortToken, unreachable } from './auth.ts'
import { parseJson } from '../src/rules/documents/json.ts'
import { place } from './router.ts'
import texts from '../dist/openapi-operations.json'
import type { components, operations } from '../dist/openapi-types.d.ts'

// The only place that calls the API. Its types are generated from openapi.yaml.

export type Schemas = components['schemas']
export type Operation = keyof operations & keyof typeof texts

type Parameters<O extends Operation> = operations[O]['parameters']
type In<P, K extends string> = P extends { [k in K]?: infer V } ? NonNullable<V> : Record<never, never>
type JsonOf<C> = C extends { 'application/json': infer B } ? B : never
type Body<O extends Operation> = operations[O] extends { requestBody?: infer R }
  ? JsonOf<NonNullable<R> extends { content: infer C } ? C : never>
  : never
type Responses<O extends Operation> = operations[O]['responses']
type Success<O extends Operation> = Responses<O>[keyof Responses<O> & (200 | 201 | 202)]
export type Answer<O extends Operation> = Success<O> extends { content: infer C } ? JsonOf<C> : undefined

export interface Request<O extends Operation> {
  path?: In<Parameters<O>, 'path'>
  query?: In<Parameters<O>, 'query'>
  body?: Body<O>
  /** The text of the body, if `JSON.stringify` would change its numbers. */
  json?: string | undefined
  /** Sent as `If-Match`; null: `If-None-Match: *`. */
  etag?: string | null | undefined
  /** The scopes of a dangerous action beyond daily work: it is sent with a second, short token. */
  dangerous?: readonly string[]
  /** Another media type than JSON: the answer is a text. */
  accept?: string
}

export interface Reply<O extends Operation> {
  data: Answer<O>, etag?: string | undefined, headers: Headers, text: string
}

export class ApiError extends Error {
  status: number
  details: Record<string, unknown>
  /** Messages by field. */
  errors: Record<string, string[]>

  constructor (status: number, body: { message?: string, details?: object, errors?: object }) {
    const { required_scope, line, column } = (body.details ?? {}) as Record<string, string>
    super([
      body.message ?? `The service answered with status ${status}.`,
      required_scope !== undefined && `It needs ${required_scope}.`,
      line !== undefined && `The first error is in line ${line}${column === undefined ? '' : `, column ${column}`}.`
    ].filter(Boolean).join(' '))
    this.status = status
    this.details = (body.details ?? {}) as Record<string, unknown>
    this.errors = (body.errors ?? {}) as Record<string, string[]>
  }
}

/** Counts the requests that were refused: the role of the person may have changed. */
export const refusals = signal(0)

/** A request of the current page, without the token and without values. */
export interface Sent { method: string, url: string, body: string | undefined, headers: string[] }
export const sent = signal<readonly Sent[]>([])
const MAX_SENT = 30
effect(() => { if (place.value !== undefined) sent.value = [] })
const SECRET_FIELDS = new Set('plaintext content set encryption_key key_proof key_check secrets versions token'.split(' '))

const withoutSecrets = (body: object): string => JSON.stringify(body, (name, value: unknown) =>
  SECRET_FIELDS.has(name) ? (name === 'set' ? Object.fromEntries(Object.keys(value as object).map((key) => [key, '…'])) : '…') : value)

/** Calls an operation. Waits after a 429, and throws `ApiError` for other errors. */
export async function call<O extends Operation> (operation: O, request: Request<O> = {}): Promise<Reply<O>> {
  const { path = {}, query = {}, body: content, json = JSON.stringify(content), etag, dangerous, accept = 'application/json' } = request
  const [method = '', template = ''] = texts[operation].split(' ')
  const url = BASE.href.slice(0, -1) + template.replace(/\{(\w+)\}/g, (_, name: string) =>
    encodeURIComponent((path as Record<string, string>)[name] ?? '')) + queryOf(query)
  const headers: Record<string, string> = { accept }
  if (content !== undefined) headers['content-type'] = 'application/json'
  if (etag !== undefined) headers[etag === null ? 'if-none-match' : 'if-match'] = etag ?? '*'
  sent.value = [...sent.peek(), {
    method,
    url,
    headers: Object.entries(headers).map(([name, value]) => `${name}: ${value}`),
    body: content === undefined ? undefined : withoutSecrets(content)
  }].slice(-MAX_SENT)

  const send = async (token: string) => patientFetch(url, {
    method,
    headers: { ...headers, authorization: `Bearer ${token}` },
    ...(content !== undefined && { body: json }),
    redirect: 'error',
    credentials: 'omit',
    cache: 'no-store'
  })
  const token = async (isRejected = false) =>
    dangerous === undefined ? accessToken(isRejected) : shortToken(dangerous, isRejected)
  let response = await send(await token())
  if ([403, 404].includes(response.status) && operation !== 'getUser') refusals.value++
  if (response.status === 401) response = await send(await token(true))
  const text = await response.text().catch(unreachable)
  const isJson = /json/.test(response.headers.get('content-type') ?? '')
  const body = isJson ? objectOf(text) : {}
  if (!response.ok) throw new ApiError(response.status, body)
  return { data: body as unknown as Answer<O>, etag: response.headers.get('etag') ?? undefined, headers: response.headers, text }
}

/** The object of a JSON text; empty for another text, such as a text of a proxy. */
const objectOf = (text: string): object => { try { return Object(parseJson(text)) as object } catch { return {} } }

const MAX_PAGES = 20

/** The items of the first pages of a list, and the number of all items. */
export async function firstPages<T> (
  load: (page: number) => Promise<{ data: T[], meta: { last_page: number, total: number } }>, pages = MAX_PAGES
): Promise<{ found: T[], total: number }> {
  const found: T[] = []
  for (let page = 1; ; page++) {
    const { data, meta: { last_page, total } } = await load(page)
    found.push(...data)
    if (page >= Math.min(last_page, pages)) return { found, total }
  }
}

function queryOf (query: object): string {
  const pairs = Object.entries(query).filter(([, value]) => value !== undefined && value !== '')
  return pairs.length === 0 ? '' : `?${new URLSearchParams(pairs.map(([name, value]) => [name, String(value)]))}`
}

export function curlOf ({ method, url, headers, body }: Sent): string {
  const quoted = (text: string) => `'${text.replaceAll("'", "'\\''")}'`
  const parts = ['-X', method, quoted(url), '-H', '"Authorization: Bearer $STRONGROOM_TOKEN"']
  for (const header of headers) parts.push('-H', quoted(header))
  return ['curl', ...parts, ...body === undefined ? [] : ['-d', quoted(body)]].join(' ')
}
