import { promisify } from 'node:util'
import { gzip } from 'node:zlib'
import { LRUCache } from 'lru-cache'
import type { IncomingHttpHeaders } from 'node:http'
import type { FastifyInstance, FastifyReply } from 'fastify'
import { sha256 } from '../../crypto/primitives.ts'
import { listsEtag } from '../repeats/etags.ts'

// All files of the documentation take 5 MiB, including 1 MiB for their compressed copies. Each spelling of a path has
// its own entry, so requests with other spellings can evict entries.
const MAX_CACHE_BYTES = 8 * 1024 * 1024
// Smaller files are not compressed, because they fit into one network packet.
const MIN_COMPRESSED_BYTES = 1400

const compress = promisify(gzip)

interface Page { body: Buffer, etag: string }
interface Pages { type: string, plain: Page, compressed: Page | undefined }

/**
 * Caches the responses of a plugin in memory, plain and compressed, each with a strong ETag. Only for pages that never
 * change while the process runs and contain no secrets: compression reveals repeated text by the length of a response.
 */
export function cachePages (app: FastifyInstance) {
  const cache = new LRUCache<string, Pages>({
    maxSize: MAX_CACHE_BYTES,
    sizeCalculation: ({ plain, compressed }) => plain.body.length + (compressed?.body.length ?? 0) + 1000
  })

  app.addHook('preHandler', async (request, reply) => {
    const pages = cache.get(request.url.split('?', 1)[0]!)
    if (pages === undefined) return
    const body = select(pages, request.headers, reply)
    if (listsEtag(request.headers['if-none-match'], String(reply.getHeader('etag')))) return reply.code(304).send()
    return reply.type(pages.type).send(body)
  })

  app.addHook('onSend', async (request, reply, payload) => {
    // The cache key has no query, so requests with a query are not cached.
    if (request.method !== 'GET' || reply.statusCode !== 200 || request.url.includes('?') || cache.has(request.url)) {
      return undefined
    }
    const plain = pageOf(await bytesOf(payload))
    const compressed = plain.body.length < MIN_COMPRESSED_BYTES ? undefined : pageOf(await compress(plain.body))
    const pages = { type: String(reply.getHeader('content-type')), plain, compressed }
    cache.set(request.url, pages)
    // Remove `Last-Modified`, which is only the build time of the file.
    for (const header of ['last-modified', 'accept-ranges']) reply.removeHeader(header)
    const body = select(pages, request.headers, reply)
    reply.header('content-length', body.length)
    return body
  })
}

// Sets the headers of the page that the client accepts, and returns its bytes.
function select ({ plain, compressed }: Pages, headers: IncomingHttpHeaders, reply: FastifyReply): Buffer {
  const isCompressed = compressed !== undefined && acceptsGzip(headers['accept-encoding'])
  const { body, etag } = isCompressed ? compressed : plain
  reply.header('etag', etag)
  if (compressed !== undefined) reply.header('vary', `${String(reply.getHeader('vary'))}, Accept-Encoding`)
  if (isCompressed) reply.header('content-encoding', 'gzip')
  return body
}

// `gzip;q=0` refuses gzip (RFC 9110, 12.5.3).
const acceptsGzip = (accepted: string | string[] = '') =>
  String(accepted).split(',').some((one) => /^\s*gzip\s*(?:;\s*q=(?!0(?:\.0*)?\s*$).*)?$/i.test(one))

const pageOf = (body: Buffer): Page => ({ body, etag: `"${sha256(body).toString('base64url')}"` })

async function bytesOf (payload: unknown): Promise<Buffer> {
  if (typeof payload === 'string' || Buffer.isBuffer(payload)) return Buffer.from(payload as string)
  const chunks: Buffer[] = []
  for await (const chunk of payload as AsyncIterable<Buffer>) chunks.push(chunk)
  return Buffer.concat(chunks)
}
