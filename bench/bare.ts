/**
 * Bare Fastify, for the references `static`, `one-query` and `plugins`: `node bare.js PORT [DATABASE_URL | plugins]`.
 * Without access checks, limits and log. With a URL, uses the database driver and pool size of the service; with
 * `plugins`, the Fastify plugins of the service.
 */
import { setTimeout as pause } from 'node:timers/promises'
import Fastify from 'fastify'
import postgres from 'postgres'

const [port, more] = process.argv.slice(2)
const app = Fastify({ logger: false })

if (more === 'plugins') {
  // Like `src/app.ts`, which registers cors only if origins are configured.
  await import('@fastify/cors')
  await app.register((await import('@fastify/rate-limit')).default, { global: false })
  await app.register((await import('@fastify/swagger')).default, { openapi: { openapi: '3.1.0' } })
  await app.register((await import('@fastify/swagger-ui')).default, { routePrefix: '/docs' })
}

const constant = { status: 'ok', filler: 'x'.repeat(200 - JSON.stringify({ status: 'ok', filler: '' }).length) }
app.get('/static', {
  schema: {
    response: { 200: { type: 'object', properties: { status: { type: 'string' }, filler: { type: 'string' } } } }
  },
  handler: async () => constant
})

if (more !== undefined && more !== 'plugins') {
  const sql = postgres(more, { max: 10, fetch_types: false })
  app.get('/one-query/:id', {
    schema: {
      response: { 200: { type: 'object', properties: { id: { type: 'integer' }, content: { type: 'string' } } } }
    },
    handler: async (request) => {
      const { id } = request.params as { id: string }
      const [row] = await sql`SELECT id, content FROM bench_documents WHERE id = ${id}`
      return row
    }
  })
}

process.on('SIGTERM', async () => {
  await Promise.race([app.close(), pause(500)])
  process.exit(0)
})
await app.listen({ host: '127.0.0.1', port: Number(port) })
