import { LRUCache } from 'lru-cache'
import type { FastifyInstance } from 'fastify'
import { sha256 } from '../../crypto/primitives.ts'
import { listsEtag } from '../repeats/etags.ts'

// All files of the documentation take 4 MiB. Each spelling of a path has an entry, so entries can be evicted.
const MAX_CACHE_BYTES = 8 * 1024 * 1024

/** Caches the responses of a plugin in memory, with a strong ETag. Only for pages that do not change in a process. */
export function keepPages (app: FastifyInstance) {
  const pages = new LRUCache<string, { body: Buffer, type: string, etag: string }>({
    maxSize: MAX_CACHE_BYTES, sizeCalculation: ({ body }) => body.length + 1000
  })

  app.addHook('preHandler', async (request, reply) => {
    const page = pages.get(request.url.split('?', 1)[0]!)
    if (page === undefined) return
    reply.header('etag', page.etag)
    if (listsEtag(request.headers['if-none-match'], page.etag)) return reply.code(304).send()
    return reply.type(page.type).send(page.body)
  })

  app.addHook('onSend', async (request, reply, payload) => {
    // The cache key has no query, so requests with a query are not cached.
    if (request.method !== 'GET' || reply.statusCode !== 200 || request.url.includes('?') || pages.has(request.url)) {
      return undefined
    }
    const body = await bytesOf(payload)
    const etag = `"${sha256(body).toString('base64url')}"`
    pages.set(request.url, { body, type: String(reply.getHeader('content-type')), etag })
    // Remove `Last-Modified`, which is only the build time of the file.
    for (const header of ['last-modified', 'accept-ranges']) reply.removeHeader(header)
    reply.headers({ etag, 'content-length': body.length })
    return body
  })
}

async function bytesOf (payload: unknown): Promise<Buffer> {
  if (typeof payload === 'string' || Buffer.isBuffer(payload)) return Buffer.from(payload as string)
  const chunks: Buffer[] = []
  for await (const chunk of payload as AsyncIterable<Buffer>) chunks.push(chunk)
  return Buffer.concat(chunks)
}
