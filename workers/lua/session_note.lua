-- session_note.lua - what a pool says of a session; of a commit only its last owner says anything.
--
-- KEYS[1] hash of the session   KEYS[2] its token log
-- ARGV[5] the session's full id   ARGV[6] fence of a commit, or -1
-- ARGV[7] "1": the token log is ARGV[8], '': it goes   ARGV[9] ... fields and values
-- returns 1; 0: a claim or a deletion came after that fence was given out, and nothing is said
-- include names
-- include rq_job
-- include session
local session, fence = ARGV[5], tonumber(ARGV[6])
if fence >= 0 then
  if fence < session_number(session, 'fence') then return 0 end
  redis.call('HSET', session_key(session), 'fence', string.format('%.0f', fence))
end
if #ARGV > 8 then redis.call('HSET', session_key(session), unpack(arguments(9))) end
if ARGV[7] == '1' and ARGV[8] ~= '' then
  redis.call('SET', KEYS[2], ARGV[8], 'EX', RESULT_TTL_S)
elseif ARGV[7] == '1' then
  redis.call('DEL', KEYS[2])
end
keep_session(session)
return 1
