-- ARGV: expected_etag ('' for any), tombstone_ms, until_ms
-- The tombstone tells a live owner that this was a deletion, not a loss.
local too_late = late(ARGV[3])
if too_late then return too_late end
local stored = read('epoch', 'deleted', 'etag')
if absent(stored[1], stored[2]) then return {'NOT_FOUND'} end
if ARGV[1] ~= '' and ARGV[1] ~= stored[3] then return {'ETAG_MISMATCH'} end
-- DEL first: a Redis that is out of memory allows DEL, and then the rest of the script.
redis.call('DEL', key)
redis.call('HSET', key, 'deleted', '1', 'epoch', int(next_epoch(stored[1], now_ms())))
redis.call('PEXPIRE', key, ARGV[2])
return {'OK'}
