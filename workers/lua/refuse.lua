-- refuse.lua - a stream entry ends without running: refused, or expired before it was routed.
--
-- KEYS[1] stream of the class   KEYS[2] hash of the job
-- ARGV[5] group   ARGV[6] entry id   ARGV[7] request id   ARGV[8] sla   ARGV[9] tenant
-- ARGV[10] body of the entry   ARGV[11] "1": also a dead letter
-- ARGV[12] "1": an entry that no router has read; one that the HTTP door has accepted stays
-- ARGV[13] n   ARGV[14] ... n fields of the job's hash, as pairs; then the end event
-- returns "refused", "duplicate" (the id is known: nothing but the entry goes), "not-mine" or
-- "accepted" (by the HTTP door)
-- include names
-- include rq_job
-- include session
-- include end_request
if ARGV[12] == '1' then
  if #redis.call('XPENDING', KEYS[1], ARGV[5], ARGV[6], ARGV[6], 1) > 0 then return 'not-mine' end
  if redis.call('HGET', KEYS[2], 'entry') == ARGV[6] then return 'accepted' end
  if redis.call('XDEL', KEYS[1], ARGV[6]) == 0 then return 'not-mine' end
else
  if redis.call('XACK', KEYS[1], ARGV[5], ARGV[6]) == 0 then return 'not-mine' end
  redis.call('XDEL', KEYS[1], ARGV[6])
end
local known = redis.call('HMGET', KEYS[2], 'status', 'entry', 'arrival_ms')
local duplicate = known[1] and not (known[1] == 'accepted' and known[2] == ARGV[6])
local num_fields = tonumber(ARGV[13])
local flat = arguments(14 + 2 * num_fields)
local event = {}
for i = 1, #flat, 2 do event[flat[i]] = flat[i + 1] end
if ARGV[11] == '1' then
  dead_letter('kind', 'request', 'id', ARGV[7], 'tenant', ARGV[9], 'sla', ARGV[8], 'entry', ARGV[6],
    'reason', event.error or '', 'code', event.code or '', 'body', ARGV[10])
end
if duplicate then return 'duplicate' end
if event.status == 'failed' and event.code then
  count(P .. ':refusals', event.code, 1)
end
if not known[1] then list_job(ARGV[7], string.match(ARGV[6], '^%d+')) end
redis.call('HSET', KEYS[2], 'sla', ARGV[8], 'tenant', ARGV[9], 'entry', ARGV[6],
  'arrival_ms', known[3] or string.match(ARGV[6], '^%d+') or NOW_MS)
for i = 14, 13 + 2 * num_fields, 2 do redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1]) end
end_request(ARGV[7], flat, nil)
return 'refused'
