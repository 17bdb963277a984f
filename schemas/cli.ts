import { Type } from '@sinclair/typebox'
import { Answer, Example } from './shapes.ts'

/** The response to usage telemetry of command-line tools, which is discarded. */
export const TelemetryAnswer = Answer('TelemetryAnswer', { success: Example(Type.Boolean(), true) })
