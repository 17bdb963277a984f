import { STATUS_CODES } from 'node:http'
import type { Socket } from 'node:net'
import { ERRORS, messageOf } from '../../../schemas/errors.ts'
import type { Config } from '../../config.ts'
import { standingHeaders } from './headers.ts'
import type { Answered } from '../observability/log.ts'

export type HandWritten = 'malformed_request' | 'header_fields_too_large' | 'method_not_allowed'

/**
 * Writes an error response directly to a socket: for invalid HTTP, too many headers, or CONNECT. Closes the connection.
 * Returns undefined if the socket is already closed.
 */
export function answerByHand (
  config: Config, socket: Socket, id: string, code: HandWritten, isDisconnected = false
): Answered | undefined {
  if (!socket.writable) {
    socket.destroy()
    return undefined
  }
  const { status } = ERRORS[code]
  // No path supports CONNECT.
  const details = code === 'method_not_allowed' ? { allowed: [] } : undefined
  const body = JSON.stringify({ error: code, message: messageOf(code, details), details })
  const headers = {
    'content-type': 'application/json; charset=utf-8',
    'content-length': Buffer.byteLength(body),
    ...standingHeaders(config, id),
    ...(code === 'method_not_allowed' && { allow: '' }),
    connection: 'close'
  }
  const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}\r\n`).join('')
  socket.end(`HTTP/1.1 ${status} ${STATUS_CODES[status]}\r\n${lines}\r\n${body}`)
  return { status, code, isDisconnected }
}
